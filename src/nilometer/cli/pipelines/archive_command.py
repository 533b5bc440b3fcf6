"""``nilometer archive``: copies sealed segments of topics into an archive, and lists what an archive has.

Needs the `spark` extra for Arrow's file systems, but neither Spark nor a broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json, print_table
from nilometer.cli.commands import FiniteRange
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.folder_commands import chosen_places, data_dir_option, log_dirs_option
from nilometer.cli.process import exit_on_sigterm
from nilometer.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from nilometer.pipeline.archive.archive_check import CheckedArchive
    from nilometer.pipeline.archive.archiver import PartitionResult
    from nilometer.pipeline.source.log_folders.places import ArchivedPartition

Range = tuple[int, int]


@commands.group(invoke_without_command=True)
@click.option("--topic", "topics", multiple=True, help="The topic to archive; repeatable.")
@click.option(
    "--to", "target", metavar="URL", help="The archive: a folder, or a URI such as s3://bucket/prefix."
)
@data_dir_option
@log_dirs_option
@click.option("--verify", is_flag=True, help="Then read all of these topics' archive again and check it.")
@json_option
@click.pass_context
def archive(
    context: click.Context,
    topics: tuple[str, ...],
    target: str | None,
    data_dir: Path | None,
    log_dirs: str | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Copy the sealed segments of topics into an archive, before retention deletes them.

    Reads the log directories of brokers, running or not, and changes nothing in them. Copied is what the
    archive does not have yet: complete segments below the high watermark, never the active one. The exit code
    is 1 if a partition could not be archived, if records were deleted before they were archived, or if the
    check finds damage.
    """
    if context.invoked_subcommand is not None:
        if topics or target or data_dir or log_dirs or verify or as_json:
            raise click.UsageError(f"give the options of `{context.invoked_subcommand}` after its name")
        return
    if not topics or not target:
        raise click.UsageError("give --topic and --to: what is archived, and where")
    exit_on_sigterm()
    try:
        places = chosen_places(data_dir, log_dirs)
        results, checked = _run(places, topics, target, verify)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"partitions": [_result_json(one) for one in results], **_checked_json(checked)})
    else:
        _show(results, checked)
    problems = _problems(results, checked)
    for problem in problems:
        click.echo(f"Error: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


@archive.command("list")
@click.option("--from", "source", metavar="URL", required=True, help="The archive: a folder or a URI.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option("--verify", is_flag=True, help="Read every file, and check it.")
@json_option
def list_archive(source: str, topics: tuple[str, ...], verify: bool, as_json: bool) -> None:
    """Show the partitions of an archive: their offsets, gaps and sizes.

    A topic that was deleted and created again is listed with both topic ids.
    """
    try:
        archived, checked = _listed(source, topics, verify)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"partitions": [_archived_json(one) for one in archived], **_checked_json(checked)})
    else:
        print_table(_LISTED_COLUMNS, [_archived_row(one) for one in archived])
        _show_check(checked)
    if checked is not None and checked.problems:
        for problem in checked.problems:
            click.echo(f"Error: {problem}", err=True)
        raise click.exceptions.Exit(1)


@archive.command("clean")
@click.option("--from", "source", metavar="URL", required=True, help="The archive: a folder or a URI.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--older-than",
    "hours",
    type=FiniteRange(0),
    default=24.0,
    show_default=True,
    metavar="HOURS",
    help="Only files of this age: a run that has not ended may still name younger ones.",
)
@click.option("--remove", is_flag=True, help="Remove them. Without it they are only listed.")
@json_option
def clean_archive(source: str, topics: tuple[str, ...], hours: float, remove: bool, as_json: bool) -> None:
    """List the files that interrupted runs left in an archive, or remove them.

    They have names that `archive` gives to files, and no manifest names them: no reader uses them.
    """
    from nilometer.pipeline.archive.archive_check import find_orphans
    from nilometer.pipeline.archive.archive_target import open_target

    try:
        target = open_target(source)
        orphans = find_orphans(target, topics or None, time.time() - hours * 3600)
        for one in orphans:
            if not as_json:  # named before it is removed: the next one may fail
                click.echo(f"{one.path}  {one.bytes:,} bytes, {_time(int(one.modified_s * 1000))}")
            if remove:
                target.remove(one.path)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    size = sum(one.bytes for one in orphans)
    if as_json:
        files = [
            {"path": one.path, "bytes": one.bytes, "modified": _time(int(one.modified_s * 1000))}
            for one in orphans
        ]
        print_json({"files": files, "bytes": size, "removed": remove})
        return
    done = "were removed" if remove else "can be removed, with --remove" if orphans else "are to be removed"
    click.echo(f"{len(orphans):,} files with {size:,} bytes {done}.")


def _run(
    places: Sequence[str], topics: Sequence[str], place: str, verify: bool
) -> tuple[list[PartitionResult], CheckedArchive | None]:
    from nilometer.pipeline.archive.archive_check import check
    from nilometer.pipeline.archive.archive_target import open_target
    from nilometer.pipeline.archive.archiver import archive as run_archive
    from nilometer.pipeline.source.log_folders.places import find_archived

    target = open_target(place)
    with OutputConsole(stderr=True).status("Archiving ...") as status:
        results = run_archive(places, topics, target, lambda what: status.update(f"Archiving {what}"))
        if not verify:
            return results, None
        ids = {one.topic_id for one in results}
        archived = [one for one in find_archived(place, topics) if one.topic_id in ids]
        return results, check(target, archived, lambda what: status.update(f"Checking {what}"))


def _listed(
    place: str, topics: Sequence[str], verify: bool
) -> tuple[list[ArchivedPartition], CheckedArchive | None]:
    from nilometer.pipeline.archive.archive_check import check
    from nilometer.pipeline.archive.archive_target import explained, open_target
    from nilometer.pipeline.source.log_folders.places import find_archived

    target = open_target(place)
    with explained(place):
        archived = find_archived(place, topics or None)
    if missing := sorted(set(topics) - {one.part.topic for one in archived}):
        raise PipelineError(f"{place} has no archive of {', '.join(missing)}: without --topic all are listed")
    if not verify:
        return archived, None
    with OutputConsole(stderr=True).status("Checking ...") as status:
        return archived, check(target, archived, lambda what: status.update(f"Checking {what}"))


def _problems(results: Sequence[PartitionResult], checked: CheckedArchive | None) -> list[str]:
    found: list[str] = []
    for one in results:
        if one.problem is not None:
            found.append(one.problem)
        found += [
            f"offsets {low} to {high - 1} of {one.part} were deleted before they were archived: archive more "
            "often, or raise the topic's retention"
            for low, high in one.lost
        ]
    return found + (checked.problems if checked is not None else [])


# --- text

_RESULT_COLUMNS = ("partition", "copied", "bytes", "archive start", "archive end", "high watermark", "gaps")
_LISTED_COLUMNS = ("partition", "topic id", "start", "end", "gaps", "segments", "records", "bytes", "newest")


def _show(results: Sequence[PartitionResult], checked: CheckedArchive | None) -> None:
    print_table(
        _RESULT_COLUMNS,
        [
            (
                str(one.part),
                one.segments_copied,
                one.bytes_copied,
                one.start,
                one.end,
                one.high_watermark,
                _ranges(one.gaps),
            )
            for one in results
        ],
    )
    for note in (note for one in results for note in one.notes):
        click.echo(note)
    _show_check(checked)


def _show_check(checked: CheckedArchive | None) -> None:
    if checked is None:
        return
    click.echo(
        f"Checked {checked.segments:,} segments with {checked.bytes:,} bytes: "
        + (f"{len(checked.problems):,} problems." if checked.problems else "all as written.")
    )
    if checked.unnamed_files:
        click.echo(
            f"{checked.unnamed_files:,} files with {checked.unnamed_bytes:,} bytes are in no manifest: an "
            "interrupted run left them, or a run that has not ended writes them. `nilometer archive clean` "
            "removes them."
        )


def _archived_row(one: ArchivedPartition) -> tuple[object, ...]:
    segments = one.manifest.segments
    newest = max((segment.max_timestamp for segment in segments), default=-1)
    return (
        str(one.part),
        one.topic_id,
        one.start,
        one.end,
        _ranges(one.gaps),
        len(segments),
        sum(segment.records for segment in one.chain),
        sum(segment.bytes for segment in segments),
        _time(newest),
    )


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError):
        return str(milliseconds)  # beyond the calendar: clients choose timestamps


def _ranges(ranges: Sequence[Range]) -> str:
    return ", ".join(f"{low}–{high - 1}" for low, high in ranges)


# --- JSON


def _result_json(one: PartitionResult) -> dict[str, Any]:
    return {
        "topic": one.part.topic,
        "topic_id": one.topic_id,
        "partition": one.part.partition,
        "segments_copied": one.segments_copied,
        "bytes_copied": one.bytes_copied,
        "start_offset": one.start,
        "end_offset": one.end,
        "high_watermark": one.high_watermark,
        "gaps": [list(each) for each in one.gaps],
        "lost": [list(each) for each in one.lost],
        "notes": one.notes,
        "problem": one.problem,
    }


def _archived_json(one: ArchivedPartition) -> dict[str, Any]:
    return {
        "topic": one.part.topic,
        "topic_id": one.topic_id,
        "partition": one.part.partition,
        "start_offset": one.start,
        "end_offset": one.end,
        "gaps": [list(each) for each in one.gaps],
        "bytes": sum(segment.bytes for segment in one.manifest.segments),
        "segments": [
            {
                "base_offset": segment.base_offset,
                "end_offset": segment.end_offset,
                "records": segment.records,
                "bytes": segment.bytes,
                "max_timestamp": segment.max_timestamp,
                "leader_epochs": [list(run) for run in segment.epochs],
                "crc32c": f"{segment.log.crc32c:08x}",
                "file": segment.log.name,
            }
            for segment in one.manifest.segments
        ],
    }


def _checked_json(checked: CheckedArchive | None) -> dict[str, Any]:
    if checked is None:
        return {}
    return {
        "checked": {
            "segments": checked.segments,
            "bytes": checked.bytes,
            "problems": checked.problems,
            "unnamed_files": checked.unnamed_files,
            "unnamed_bytes": checked.unnamed_bytes,
        }
    }
