"""``nilometer audit | export | archive``: they read brokers' folders; and the options that name folders."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import DEFAULT_DATA_DIR, json_option, parse_pairs, print_json, print_table
from nilometer.cli.commands import FiniteRange
from nilometer.cli.console import OutputConsole
from nilometer.cli.process import exit_on_sigterm
from nilometer.local.local_cluster import LocalCluster
from nilometer.pipeline.errors import PipelineError, readable

if TYPE_CHECKING:
    from nilometer.pipeline.archive.archiver import CheckedArchive, PartitionResult
    from nilometer.pipeline.archive.restore import RestoredPartition
    from nilometer.pipeline.audit.audit import AuditResult
    from nilometer.pipeline.export.topic_export import Compression, Exported
    from nilometer.pipeline.source.log_folders.places import ArchivedPartition


# The options of commands that read brokers' folders, and what they name.

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder of a local cluster. [default: {DEFAULT_DATA_DIR}]",
)
log_dirs_option = click.option(
    "--log-dirs",
    metavar="DIR[,…]",
    help="Log directories of brokers, copies of them, or folders of partitions.",
)


def chosen_places(data_dir: Path | None, log_dirs: str | None) -> list[str]:
    """Return the folders that --data-dir or --log-dirs names. Raises UsageError, PipelineError."""
    if data_dir is not None and log_dirs is not None:
        raise click.UsageError("give only one of --data-dir and --log-dirs")
    if log_dirs is None:
        return log_dirs_of(data_dir or Path(DEFAULT_DATA_DIR))
    places = [one.strip() for one in log_dirs.split(",") if one.strip()]
    if not places:
        raise click.UsageError("--log-dirs names no folder")
    return places


def log_dirs_of(data_dir: Path) -> list[str]:
    """Return the log directories of a local cluster's brokers. Raises PipelineError if there are none."""
    cluster = LocalCluster(data_dir)
    found: list[str] = []
    for broker_id in cluster.broker_ids():
        properties = cluster.settings(broker_id)
        value = properties.get("log.dirs") or properties.get("log.dir") or ""
        found += [one.strip() for one in value.split(",") if one.strip() and Path(one.strip()).is_dir()]
    if not found:
        raise PipelineError(
            f"there is no cluster in {data_dir}: give its folder with --data-dir, or the brokers' log "
            "directories with --log-dirs"
        )
    return found


# ``nilometer audit``: checks every replica on Spark, and prints a table or writes a report.
#
# Nothing of Spark is imported before the folders have been found.

FINDINGS_SHOWN_MAX = 100


@commands.command()
@data_dir_option
@log_dirs_option
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the findings to this .html or .json file.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(".nilometer/audit/spark.log"),
    show_default=True,
    help="The file that Spark's log goes to.",
)
@json_option
def audit(
    data_dir: Path | None,
    log_dirs: str | None,
    topics: tuple[str, ...],
    report: Path | None,
    master: str,
    spark_log: Path,
    as_json: bool,
) -> None:
    """Check the files of every replica of every partition, and compare the replicas.

    Reads the folders of all brokers, running or not, and changes nothing. Checked are checksums, offsets,
    leader epochs, indexes and committed offsets, and that all replicas have equal batches up to the lowest
    high watermark. The exit code is 1 if errors were found.
    """
    console = OutputConsole(stderr=True)
    try:
        places = chosen_places(data_dir, log_dirs)
        result = _run_audit(places, topics, master, spark_log, console)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    from nilometer.pipeline.audit import audit

    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        audit.write_report(result, report)
    if as_json:
        click.echo(audit.to_json(result), nl=False)
    else:
        _show(result)
    if result.wrong:
        raise click.exceptions.Exit(1)


def _run_audit(
    places: list[str], topics: tuple[str, ...], master: str, spark_log: Path, console: OutputConsole
) -> AuditResult:
    from nilometer.pipeline.audit.audit import audit as run_audit
    from nilometer.pipeline.source.log_folders.places import find_replicas
    from nilometer.pipeline.spark.spark_session import build_session

    exit_on_sigterm()
    find_replicas(places)  # raises for a wrong place, before the slow start of Spark
    with console.status("Starting Spark ...") as status:
        spark = build_session("audit", master=master, log_file=spark_log, quick=True)
        try:
            return run_audit(
                spark, places, topics=topics, on_round=lambda what: status.update(f"Audit: {what}")
            )
        except PipelineError:
            raise
        except Exception as error:
            words = readable(error)
            raise PipelineError(words or f"{type(error).__name__} (more in {spark_log})") from error
        finally:
            spark.stop()


def _show(result: AuditResult) -> None:
    from nilometer.pipeline.audit import audit

    print_table(audit.PARTITION_COLUMNS, audit.folded_rows(result))
    if result.findings:
        shown = result.findings[:FINDINGS_SHOWN_MAX]
        print_table(audit.FINDING_COLUMNS, audit.finding_rows(shown), title="Found")
        if len(result.findings) > len(shown):
            click.echo(f"… and {len(result.findings) - len(shown)} more; --report FILE writes all of them")
    click.echo(audit.summary(result))


# ``nilometer export``: writes what is new in topics to Parquet files, from brokers' folders, on Spark.
#
# Nothing of Spark is imported before the folders have been found.

COMPRESSIONS = ("zstd", "snappy", "lz4", "none")
_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("subscribe", "subscribepattern", "assign"), "--topic"),
    **dict.fromkeys(("path", "paths", "logdirs"), "--data-dir or --log-dirs"),
}
"""Options of the data source that have one of the command's, by their name in lower case."""


@commands.command("export")
@click.option("--topic", "topics", multiple=True, required=True, help="The topic to export; repeatable.")
@click.option(
    "--to",
    "folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the export; a later run adds to it what is new.",
)
@data_dir_option
@log_dirs_option
@click.option("--columns", metavar="NAME[,…]", help="Only these columns.  [default: all of nilometer-log]")
@click.option(
    "--compression",
    type=click.Choice(COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="The codec of the files.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option KEY=VALUE of the data source nilometer-log; repeatable.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--spark-log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(".nilometer/export/spark.log"),
    show_default=True,
    help="The file that Spark's log goes to.",
)
@json_option
def export_command(
    topics: tuple[str, ...],
    folder: Path,
    data_dir: Path | None,
    log_dirs: str | None,
    columns: str | None,
    compression: str,
    options: tuple[str, ...],
    master: str,
    spark_log: Path,
    as_json: bool,
) -> None:
    """Write the records of topics to Parquet files, as fast as the files can be read.

    Reads the log directories of brokers, running or not, up to the checkpointed high watermark, and changes
    nothing in them. With --option tier=URI, the brokers' nilometer.tier.uri, records of tiered topics are
    read that are in remote storage only; without a folder, from there alone. A run adds the records that the
    folder does not have yet, all or none of them. The files are below data, in a folder for each run.
    """
    given = parse_pairs(options, "--option")
    for name in given:
        if name.lower() in _INSTEAD:
            raise click.UsageError(f"--option {name}: use {_INSTEAD[name.lower()]}")
    try:
        places = _exported_places(data_dir, log_dirs, given)
        given |= {"paths": json.dumps(places), "subscribe": ",".join(topics)}
        exported = _run_export(given, folder, columns, cast("Compression", compression), master, spark_log)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json(_as_json(exported))
        return
    ranges = [(str(part), start, end) for part, (start, end) in exported.ranges.items()]
    print_table(("partition", "from offset", "up to offset"), ranges)
    click.echo(f"Wrote {exported.rows:,} records to {exported.files:,} files, {exported.bytes:,} bytes.")


def _exported_places(data_dir: Path | None, log_dirs: str | None, given: Mapping[str, str]) -> list[str]:
    """Return the folders; none, if none is named and there is no local cluster, for what is elsewhere."""
    is_elsewhere = not {name.lower() for name in given}.isdisjoint(("archive", "tier"))
    if is_elsewhere and data_dir is None and log_dirs is None and not Path(DEFAULT_DATA_DIR).exists():
        return []
    return chosen_places(data_dir, log_dirs)


def _run_export(
    given: dict[str, str],
    folder: Path,
    columns: str | None,
    compression: Compression,
    master: str,
    spark_log: Path,
) -> Exported:
    from nilometer.pipeline.export.topic_export import COLUMNS, check_export, export_topics
    from nilometer.pipeline.spark.spark_session import build_session

    exit_on_sigterm()
    names = tuple(one.strip() for one in columns.split(",")) if columns is not None else COLUMNS
    check_export(given, names, folder)  # before the slow start of Spark
    with OutputConsole(stderr=True).status("Starting Spark ...") as status:
        spark = build_session("export", master=master, log_file=spark_log, quick=True)
        try:
            status.update("Exporting ...")
            return export_topics(spark, given, folder, columns=names, compression=compression)
        except PipelineError:
            raise
        except OSError as error:
            raise PipelineError(f"{error.filename or folder}: {error.strerror or error}") from error
        except Exception as error:
            words = readable(error)
            raise PipelineError(words or f"{type(error).__name__} (more in {spark_log})") from error
        finally:
            spark.stop()


def _as_json(exported: Exported) -> dict[str, object]:
    return {
        "records": exported.rows,
        "files": exported.files,
        "bytes": exported.bytes,
        "partitions": [
            {"topic": part.topic, "partition": part.partition, "start_offset": start, "end_offset": end}
            for part, (start, end) in exported.ranges.items()
        ],
    }


# ``nilometer archive``: copies sealed segments of topics into an archive, and lists what an archive has.
#
# Needs the `spark` extra for Arrow's file systems, but neither Spark nor a broker.

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
        _show_archive(results, checked)
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
    from nilometer.pipeline.archive.archive_target import open_target
    from nilometer.pipeline.archive.archiver import find_orphans

    try:
        target = open_target(source)
        orphans = find_orphans(target, topics or None, time.time() - hours * 3600)
        for one in orphans:
            if not as_json:  # named before it is removed: the next one may fail
                click.echo(f"{one.path}  {one.bytes:,} bytes, {time_text(int(one.modified_s * 1000))}")
            if remove:
                target.remove(one.path)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    size = sum(one.bytes for one in orphans)
    if as_json:
        files = [
            {"path": one.path, "bytes": one.bytes, "modified": time_text(int(one.modified_s * 1000))}
            for one in orphans
        ]
        print_json({"files": files, "bytes": size, "removed": remove})
        return
    done = "were removed" if remove else "can be removed, with --remove" if orphans else "are to be removed"
    click.echo(f"{len(orphans):,} files with {size:,} bytes {done}.")


@archive.command("restore")
@click.option("--from", "source", metavar="URL", required=True, help="The archive: a folder or a URI.")
@click.option("--topic", "topics", multiple=True, required=True, help="The topic to restore; repeatable.")
@click.option(
    "--as", "name", metavar="TOPIC", help="The topic that gets the records, if it has another name."
)
@click.option("--topic-id", metavar="ID", help="Which of several archived topics of that name.")
@click.option("--allow-missing", is_flag=True, help="Also if the archive lacks offsets or partitions.")
@click.option(
    "--only-here",
    is_flag=True,
    help="Leave out partitions of which other machines have all replicas.",
)
@data_dir_option
@log_dirs_option
@json_option
def restore_archive(
    source: str,
    topics: tuple[str, ...],
    name: str | None,
    topic_id: str | None,
    allow_missing: bool,
    only_here: bool,
    data_dir: Path | None,
    log_dirs: str | None,
    as_json: bool,
) -> None:
    """Write archived records into new, empty topics of brokers that are stopped.

    Create the topic with as many partitions as the archive has and with settings that keep old records
    (retention.ms=-1), stop the brokers, restore, and start them. The folders of all replicas are to be named.
    Records keep their offsets. Those of aborted transactions are left out, and all from the first transaction
    on that has no end in the archive. Nothing else than these empty partitions is changed.
    """
    from nilometer.pipeline.archive.restore import restore

    if len(topics) > 1 and (name is not None or topic_id is not None):
        raise click.UsageError("--as and --topic-id are about one --topic")
    exit_on_sigterm()
    try:
        places = chosen_places(data_dir, log_dirs)
        with OutputConsole(stderr=True).status("Restoring ...") as status:
            restored = restore(
                source,
                topics,
                places,
                name=name,
                topic_id=topic_id,
                allows_missing=allow_missing,
                only_here=only_here,
                say=status.update,
            )
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        print_json({"partitions": [_restored_json(one) for one in restored]})
        return
    print_table(_RESTORED_COLUMNS, [_restored_row(one) for one in restored])
    if any(one.unfinished for one in restored):
        click.echo(
            "Unfinished: the transaction of these records, or one before them, has no end in the archive."
        )


def _run(
    places: Sequence[str], topics: Sequence[str], place: str, verify: bool
) -> tuple[list[PartitionResult], CheckedArchive | None]:
    from nilometer.pipeline.archive.archive_target import open_target
    from nilometer.pipeline.archive.archiver import archive as run_archive
    from nilometer.pipeline.archive.archiver import check
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
    from nilometer.pipeline.archive.archive_target import explained, open_target
    from nilometer.pipeline.archive.archiver import check
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
_RESTORED_COLUMNS = ("partition", "replicas", "start", "end", "records", "aborted", "unfinished", "missing")
_LISTED_COLUMNS = ("partition", "topic id", "start", "end", "gaps", "segments", "records", "bytes", "newest")


def _show_archive(results: Sequence[PartitionResult], checked: CheckedArchive | None) -> None:
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
        ranges_text(one.gaps),
        len(segments),
        sum(segment.records for segment in one.chain),
        sum(segment.bytes for segment in segments),
        time_text(newest),
    )


def _restored_row(one: RestoredPartition) -> tuple[object, ...]:
    left_out = (one.aborted, one.unfinished, ranges_text(one.missing))
    return (str(one.part), one.replicas, one.start, one.end, one.records, *left_out)


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


def _restored_json(one: RestoredPartition) -> dict[str, Any]:
    return {
        "topic": one.part.topic,
        "partition": one.part.partition,
        "archived_topic_id": one.archived.topic_id,
        "replicas": one.replicas,
        "start": one.start,
        "end": one.end,
        "records": one.records,
        "aborted_records": one.aborted,
        "unfinished_records": one.unfinished,
        "missing": [list(each) for each in one.missing],
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
