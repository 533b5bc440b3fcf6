"""``nilometer audit``: checks every replica on Spark, and prints a table or writes a report.

Nothing of Spark is imported before the folders have been found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from nilometer.cli.cluster.broker_commands import DEFAULT_DATA_DIR
from nilometer.cli.cluster_options import json_option, print_table
from nilometer.cli.signals import exit_on_sigterm
from nilometer.config import parse_properties
from nilometer.local.local_cluster import LocalCluster
from nilometer.pipeline.errors import PipelineError, readable

if TYPE_CHECKING:
    from nilometer.pipeline.audit.audit import AuditResult

FINDINGS_SHOWN_MAX = 100


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"The folder of a local cluster. [default: {DEFAULT_DATA_DIR}]",
)
@click.option(
    "--log-dirs",
    metavar="DIR[,…]",
    help="Log directories of brokers, copies of them, or folders of partitions.",
)
@click.option("--topic", help="Only this topic.")
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
    topic: str | None,
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
    console = Console(stderr=True)
    try:
        places = chosen_places(data_dir, log_dirs)
        result = _run(places, topic, master, spark_log, console)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    from nilometer.pipeline.audit import audit_report

    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        audit_report.write_report(result, report)
    if as_json:
        click.echo(audit_report.to_json(result), nl=False)
    else:
        _show(result)
    if result.wrong:
        raise click.exceptions.Exit(1)


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
        path = cluster.broker_dir(broker_id) / "server.properties"
        properties = parse_properties(path.read_text("utf-8"), str(path))
        value = properties.get("log.dirs") or properties.get("log.dir") or ""
        found += [one.strip() for one in value.split(",") if one.strip() and Path(one.strip()).is_dir()]
    if not found:
        raise PipelineError(
            f"there is no cluster in {data_dir}: give its folder with --data-dir, or the brokers' log "
            "directories with --log-dirs"
        )
    return found


def _run(places: list[str], topic: str | None, master: str, spark_log: Path, console: Console) -> AuditResult:
    from nilometer.pipeline.audit.audit import audit as run_audit
    from nilometer.pipeline.source.log_folders.replica_folders import find_replicas
    from nilometer.pipeline.spark.spark_session import build_session

    exit_on_sigterm()
    find_replicas(places)  # raises for a wrong place, before the slow start of Spark
    with console.status("Starting Spark ...") as status:
        spark = build_session("audit", master=master, log_file=spark_log, quick=True)
        try:
            return run_audit(
                spark, places, topic=topic, on_round=lambda what: status.update(f"Audit: {what}")
            )
        except PipelineError:
            raise
        except Exception as error:
            words = readable(error)
            raise PipelineError(words or f"{type(error).__name__} (more in {spark_log})") from error
        finally:
            spark.stop()


def _show(result: AuditResult) -> None:
    from nilometer.pipeline.audit import audit_report

    print_table(audit_report.PARTITION_COLUMNS, audit_report.folded_rows(result))
    if result.findings:
        shown = result.findings[:FINDINGS_SHOWN_MAX]
        print_table(audit_report.FINDING_COLUMNS, audit_report.finding_rows(shown), title="Found")
        if len(result.findings) > len(shown):
            click.echo(f"… and {len(result.findings) - len(shown)} more; --report FILE writes all of them")
    click.echo(audit_report.summary(result))
