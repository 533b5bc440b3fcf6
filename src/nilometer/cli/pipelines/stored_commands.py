"""``nilometer archive | tier``: archives and the remote storage of tiered topics, which have one format.

Needs no broker, and the extra `s3` for a bucket.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_json, print_table, run_async
from nilometer.cli.commands import FiniteRange
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.folder_commands import chosen_places, data_dir_option, log_dirs_option
from nilometer.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from nilometer.pipeline.archive.archiver import PartitionResult
    from nilometer.pipeline.archive.restore import Restored
    from nilometer.pipeline.archive.stored import Checked
    from nilometer.runtime.object_store import ListedStore
    from nilometer.tier.catalogue import StoredPartition
    from nilometer.tier.format import RemoteSegment

Range = tuple[int, int]

from_option = click.option(
    "--from",
    "source",
    metavar="URL",
    required=True,
    help="The archive, or the store that nilometer.tier.uri names: a folder, or a URI such as "
    "s3://bucket/prefix.",
)


@commands.group(invoke_without_command=True)
@click.option("--topic", "topics", multiple=True, help="The topic to archive; repeatable.")
@click.option(
    "--to", "target", metavar="URL", help="The archive: a folder, or a URI such as s3://bucket/prefix."
)
@click.option(
    "--former",
    metavar="URL",
    help="Another archive, from which records of these topics are copied, too: for example one that an "
    "earlier version has written (format 1).",
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
    former: str | None,
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
        if topics or target or former or data_dir or log_dirs or verify or as_json:
            raise click.UsageError(f"give the options of `{context.invoked_subcommand}` after its name")
        return
    if not topics or not target:
        raise click.UsageError("give --topic and --to: what is archived, and where")
    try:
        places = chosen_places(data_dir, log_dirs)
        store = _opened(target, creates=True)
        results, checked = run_async(_archived(places, topics, store, former, verify=verify))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    problems = [*_problems(results), *(checked.problems if checked is not None else [])]
    if as_json:
        print_json({"partitions": [_result_json(one) for one in results], **_checked_json(checked)})
    else:
        _show_results(results, checked)
    _end(problems)


@commands.group()
def tier() -> None:
    """Show what the remote storage of tiered topics has; restore topics from it alone."""


@commands.command("list")
@from_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option("--verify", is_flag=True, help="Read every object, and check it.")
@json_option
def list_stored(source: str, topics: tuple[str, ...], verify: bool, as_json: bool) -> None:
    """Show the partitions in an archive, or in remote storage: their offsets, gaps, sizes and timestamps.

    Of every cluster that has written there. A topic that was deleted and created again is listed with both
    topic ids. The exit code is 1 if a partition cannot be read, or if the check finds damage.
    """
    from nilometer.pipeline.archive.stored import unreadable

    try:
        found, checked = run_async(_listed(_opened(source), topics, verify=verify))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    problems = unreadable(found) if checked is None else checked.problems
    if as_json:
        listed = [_stored_json(one) for one in found]
        print_json({"partitions": listed, "problems": problems, **_checked_json(checked)})
    else:
        print_table(_STORED_COLUMNS, [_stored_row(one) for one in found])
        _show_check(checked)
    _end(problems)


@archive.command("clean")
@from_option
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

    They have names that `archive` gives to files, and no manifest needs them: no reader uses them. A run of
    `archive` removes those of its partitions that are older than a day.
    """
    from nilometer.pipeline.archive.stored import explained, find_left

    before_ms = int((time.time() - hours * 3600) * 1000)

    async def clean() -> list[dict[str, Any]]:
        store, files = _opened(source), list[dict[str, Any]]()
        for one in await find_left(store, topics, before_ms):
            written = time_text(one.listed.written_ms)
            if not as_json:  # named before it is removed: the next one may fail
                click.echo(f"{one.name}  {one.listed.bytes:,} bytes, {written}")
            if remove:
                await store.remove(one.name)
            files.append({"path": one.name, "bytes": one.listed.bytes, "modified": written})
        return files

    try:
        files = run_async(explained(clean()))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    size = sum(one["bytes"] for one in files)
    if as_json:
        print_json({"files": files, "bytes": size, "removed": remove})
        return
    done = "were removed" if remove else "can be removed, with --remove" if files else "are to be removed"
    click.echo(f"{len(files):,} files with {size:,} bytes {done}.")


_RESTORE_OPTIONS = (
    from_option,
    click.option("--topic", "topics", multiple=True, required=True, help="The topic to restore; repeatable."),
    click.option(
        "--as", "name", metavar="TOPIC", help="The topic that gets the records, if it has another name."
    ),
    click.option(
        "--topic-id", metavar="ID", help="Which of several stored topics of that name: ID or CLUSTER/ID."
    ),
    click.option("--allow-missing", is_flag=True, help="Also if the store lacks offsets or partitions."),
    click.option(
        "--allow-recent",
        is_flag=True,
        help="Also if another cluster has written to the topic in remote storage within the last ten "
        "minutes, and may still run.",
    ),
    click.option(
        "--only-here",
        is_flag=True,
        help="Leave out partitions of which other machines have all replicas.",
    ),
    data_dir_option,
    log_dirs_option,
    json_option,
)


def _restoring(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that both ways of restoring have."""
    for option in reversed(_RESTORE_OPTIONS):
        command = option(command)
    return command


@archive.command("restore")
@_restoring
def restore_archive(source: str, **given: Any) -> None:
    """Write archived records into new, empty topics of brokers that are stopped, on their disks.

    Create the topic with as many partitions as the archive has and with settings that keep old records
    (retention.ms=-1), stop the brokers, restore, and start them. The folders of all replicas are to be named.
    Records keep their offsets. Those of aborted transactions are left out, and all from the first transaction
    on that has no end in the archive. Nothing else than these empty partitions is changed.
    """
    _restore(source, None, **given)


@tier.command("restore")
@_restoring
@click.option(
    "--to",
    "target",
    metavar="URI",
    help="The remote storage of the brokers, if it is another one.  [default: that of --from]",
)
def restore_tier(source: str, target: str | None, **given: Any) -> None:
    """Bring topics back from a store alone, into new, empty tiered topics of brokers that are stopped.

    Create each topic as a tiered one, with as many partitions as it had (the command that does so is shown if
    there is none), stop the brokers, restore, and start them. The records go from store to store, to the
    folder of the new topic there; the disks of the brokers need no room for them. All records come back that
    the store has, at their offsets, with their transactions. Those that were never copied are lost, and so
    are the committed offsets of groups. What is stored of the former topic stays.
    """
    _restore(source, source if target is None else target, **given)


for _group in (archive, tier):
    _group.add_command(list_stored)


def _restore(
    source: str,
    target: str | None,
    *,
    topics: tuple[str, ...],
    name: str | None,
    topic_id: str | None,
    allow_missing: bool,
    allow_recent: bool,
    only_here: bool,
    data_dir: Path | None,
    log_dirs: str | None,
    as_json: bool,
) -> None:
    """Restore to the disks of brokers, or to their remote storage ``target``."""
    from nilometer.pipeline.archive import restore, tier_restore

    if len(topics) > 1 and (name is not None or topic_id is not None):
        raise click.UsageError("--as and --topic-id are about one --topic")
    try:
        places = chosen_places(data_dir, log_dirs)
        store = _opened(source)
        with OutputConsole(stderr=True).status("Restoring ...") as status:
            options: dict[str, Any] = {
                "name": name,
                "topic_id": topic_id,
                "allows_missing": allow_missing,
                "allows_recent": allow_recent,
                "only_here": only_here,
                "say": status.update,
            }
            if target is None:
                restored = run_async(restore.restore(store, topics, places, **options))
            else:
                restored = run_async(tier_restore.restore(store, _opened(target), topics, places, **options))
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"partitions": [_restored_json(one) for one in restored]})
        return
    print_table(_RESTORED_COLUMNS, [_restored_row(one) for one in restored])
    if target is not None:
        _say_about_tier(restored)
    elif any(one.unfinished_records for one in restored):
        click.echo(
            "Unfinished: the transaction of these records, or one before them, has no end in the archive."
        )


def _say_about_tier(restored: Sequence[Restored]) -> None:
    if any(one.aborted for one in restored):
        click.echo("Aborted: transactions whose ends are not in the store; no reader of committed records")
        click.echo("sees their records.")
    click.echo(
        "Keep remote.storage.enable=true: the brokers of a topic that is not tiered give up what is only in "
        "remote storage, which is all of it."
    )
    click.echo(
        "Lost: what was appended after the end, and the committed offsets of groups (`nilometer group "
        "reset-offsets` sets them, by time for example)."
    )


def _opened(place: str, *, creates: bool = False) -> ListedStore:
    """Raises PipelineError."""
    from nilometer.pipeline.archive.stored import open_stored

    return open_stored(place, creates=creates)


async def _archived(
    places: Sequence[str], topics: Sequence[str], store: ListedStore, former: str | None, *, verify: bool
) -> tuple[list[PartitionResult], Checked | None]:
    from nilometer.pipeline.archive.archiver import archive as run_archive
    from nilometer.pipeline.archive.stored import explained
    from nilometer.tier.catalogue import find_partitions

    with OutputConsole(stderr=True).status("Archiving ...") as status:
        results = await run_archive(
            places, topics, store, lambda what: status.update(f"Archiving {what}"), former=former
        )
    ids = {one.topic_id for one in results}
    found = await explained(find_partitions(store, topics)) if verify else []
    return results, await _checked(store, [one for one in found if one.topic_id in ids]) if verify else None


async def _listed(
    store: ListedStore, topics: Sequence[str], *, verify: bool
) -> tuple[list[StoredPartition], Checked | None]:
    """Return the partitions, and what the check finds. Raises PipelineError."""
    from nilometer.pipeline.archive.stored import explained, find_stored

    found = await explained(find_stored(store, topics))
    return found, await _checked(store, found) if verify else None


async def _checked(store: ListedStore, found: Sequence[StoredPartition]) -> Checked:
    from nilometer.pipeline.archive.stored import check, explained

    with OutputConsole(stderr=True).status("Checking ...") as status:
        return await explained(check(store, found, lambda what: status.update(f"Checking {what}")))


def _problems(results: Sequence[PartitionResult]) -> list[str]:
    found: list[str] = []
    for one in results:
        if one.problem is not None:
            found.append(one.problem)
        found += [
            f"offsets {low} to {high - 1} of {one.part} were deleted before they were archived: archive more "
            "often, or raise the topic's retention"
            for low, high in one.lost
        ]
    return found


def _end(problems: Sequence[str]) -> None:
    """Show what is wrong; end with exit code 1 if something is."""
    for problem in problems:
        click.echo(f"Error: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(1)


# --- text

_RESULT_COLUMNS = ("partition", "copied", "bytes", "archive start", "archive end", "high watermark", "gaps")
_STORED_COLUMNS = (
    "partition", "cluster", "topic id", "start", "end", "segments", "records", "bytes", "newest",
    "last manifest", "state",
)  # fmt: skip
_RESTORED_COLUMNS = (
    "partition", "replicas", "start", "end", "records", "bytes", "newest", "aborted", "unfinished", "missing",
)  # fmt: skip


def _show_results(results: Sequence[PartitionResult], checked: Checked | None) -> None:
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
                ranges_text(one.gaps),
            )
            for one in results
        ],
    )
    for note in (note for one in results for note in one.notes):
        click.echo(note)
    _show_check(checked)


def _show_check(checked: Checked | None) -> None:
    if checked is None:
        return
    click.echo(
        f"Checked {checked.segments:,} segments with {checked.bytes:,} bytes: "
        + (f"{len(checked.problems):,} problems." if checked.problems else "all as written.")
    )
    if checked.unnamed:
        click.echo(
            f"{checked.unnamed:,} files with {checked.unnamed_bytes:,} bytes are in no manifest: an "
            "interrupted run left them, or a run that has not ended writes them. `nilometer archive clean` "
            "removes them."
        )


def _stored_row(one: StoredPartition) -> tuple[object, ...]:
    manifest = one.manifest
    if manifest is None:
        state = "unreadable" if one.problem else "no manifest"
        return (f"?-{one.partition}", one.cluster_id, one.topic_id, *("",) * 7, state)
    counts = [segment.records for segment in manifest.segments]
    return (
        f"{one.topic}-{one.partition}",
        one.cluster_id,
        one.topic_id,
        _start_of(one),
        manifest.end_offset,
        len(_segments_of(one)),
        "" if None in counts else sum(filter(None, counts)),
        manifest.sums.log_bytes,
        time_text(one.newest_ms) if manifest.segments else "",
        time_text(manifest.written_ms) if manifest.written_ms >= 0 else "",
        "deleted" if one.is_deleted else f"lacks {ranges_text(one.gaps)}" if one.gaps else "",
    )


def _start_of(one: StoredPartition) -> int | None:
    """Return the first offset that can be read: remote storage is of use behind its last gap only."""
    return one.manifest.log_start_offset if one.manifest and one.is_archive else one.start_offset


def _segments_of(one: StoredPartition) -> Sequence[RemoteSegment]:
    return one.manifest.segments if one.manifest and one.is_archive else one.segments


def _restored_row(one: Restored) -> tuple[object, ...]:
    return (
        str(one.part),
        one.replicas,
        one.start,
        one.end,
        "" if one.records is None else one.records,
        one.bytes,
        time_text(one.stored.newest_ms) if one.stored.segments else "",
        one.aborted_records if one.aborted is None else one.aborted,
        one.unfinished_records,
        ranges_text(one.stored.gaps),
    )


def time_text(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(" ", "seconds")
    except (ValueError, OverflowError):
        return str(milliseconds)  # beyond the calendar: clients choose timestamps


def ranges_text(ranges: Sequence[Range]) -> str:
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


def _stored_json(one: StoredPartition) -> dict[str, Any]:
    manifest = one.manifest
    known = manifest is not None
    return {
        "cluster_id": one.cluster_id or None,
        "topic": one.topic or None,
        "topic_id": one.topic_id,
        "partition": one.partition,
        "partition_count": manifest.topic.partition_count or None if known else None,
        "settings": manifest.topic.settings if known else None,
        "archive": one.is_archive,
        "start_offset": _start_of(one) if known else None,
        "end_offset": manifest.end_offset if known else None,
        "segments": [_segment_json(segment) for segment in _segments_of(one)],
        "bytes": manifest.sums.log_bytes if known else None,
        "newest_timestamp_ms": one.newest_ms if one.newest_ms >= 0 else None,
        "manifest": manifest.number if known else None,
        "written_ms": manifest.written_ms if known else None,
        "leader_epoch": manifest.leader_epoch if known else None,
        "deleted": one.is_deleted,
        "gaps": [list(each) for each in one.gaps],
        "problem": one.problem or None,
    }


def _segment_json(one: RemoteSegment) -> dict[str, Any]:
    return {
        "base_offset": one.base_offset,
        "end_offset": one.end_offset,
        "records": one.records,
        "bytes": one.log_bytes + one.index_bytes,
        "max_timestamp": one.max_timestamp,
        "leader_epochs": [list(run) for run in one.epochs],
        "crc32c": None if one.log_crc is None else f"{one.log_crc:08x}",
        "file": one.log_name,
    }


def _restored_json(one: Restored) -> dict[str, Any]:
    return {
        "topic": one.part.topic,
        "partition": one.part.partition,
        "cluster_id": one.stored.cluster_id or None,
        "stored_topic_id": one.stored.topic_id,
        "replicas": one.replicas,
        "start": one.start,
        "end": one.end,
        "records": one.records,
        "bytes": one.bytes,
        "newest_timestamp_ms": one.stored.newest_ms if one.stored.newest_ms >= 0 else None,
        "aborted_transactions": one.aborted,
        "aborted_records": one.aborted_records,
        "unfinished_records": one.unfinished_records,
        "missing": [list(each) for each in one.stored.gaps],
    }


def _checked_json(checked: Checked | None) -> dict[str, Any]:
    if checked is None:
        return {}
    return {
        "checked": {
            "segments": checked.segments,
            "bytes": checked.bytes,
            "problems": checked.problems,
            "unnamed_files": checked.unnamed,
            "unnamed_bytes": checked.unnamed_bytes,
        }
    }
