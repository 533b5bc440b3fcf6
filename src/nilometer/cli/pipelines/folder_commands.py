"""``nilometer audit | export``: they read brokers' folders; and the options that name folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import DEFAULT_DATA_DIR, json_option, parse_pairs, print_json, print_table
from nilometer.cli.console import OutputConsole
from nilometer.cli.process import exit_on_sigterm
from nilometer.local.local_cluster import LocalCluster
from nilometer.pipeline.errors import PipelineError, readable

if TYPE_CHECKING:
    from nilometer.pipeline.audit.audit import AuditResult
    from nilometer.pipeline.export.topic_export import Compression, Exported


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
