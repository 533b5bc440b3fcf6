"""``nilometer audit``: checks every replica on Spark, and prints a table or writes a report.

Nothing of Spark is imported before the folders have been found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import json_option, print_table
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.log_folder_options import chosen_places, data_dir_option, log_dirs_option
from nilometer.cli.signals import exit_on_sigterm
from nilometer.pipeline.errors import PipelineError, readable

if TYPE_CHECKING:
    from nilometer.pipeline.audit.audit import AuditResult

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
        result = _run(places, topics, master, spark_log, console)
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


def _run(
    places: list[str], topics: tuple[str, ...], master: str, spark_log: Path, console: OutputConsole
) -> AuditResult:
    from nilometer.pipeline.audit.audit import audit as run_audit
    from nilometer.pipeline.source.log_folders.replica_folders import find_replicas
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
    from nilometer.pipeline.audit import audit_report

    print_table(audit_report.PARTITION_COLUMNS, audit_report.folded_rows(result))
    if result.findings:
        shown = result.findings[:FINDINGS_SHOWN_MAX]
        print_table(audit_report.FINDING_COLUMNS, audit_report.finding_rows(shown), title="Found")
        if len(result.findings) > len(shown):
            click.echo(f"… and {len(result.findings) - len(shown)} more; --report FILE writes all of them")
    click.echo(audit_report.summary(result))
