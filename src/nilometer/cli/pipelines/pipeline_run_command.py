"""``nilometer pipeline run``: runs a shipped pipeline on Spark, until it is stopped or has read everything.

Nothing of Spark is imported before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from nilometer.cli.cluster_options import parse_pairs
from nilometer.cli.pipelines.pipeline_results import print_position, print_tables, progress_line, tables_of
from nilometer.cli.pipelines.pipeline_state_commands import (
    home_option,
    render_report,
)
from nilometer.cli.pipelines.pipeline_topics import named_topics
from nilometer.cli.signals import exit_on_sigterm, stop_on_signals
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED
from nilometer.pipeline.run.run_record import FAILED, FINISHED, STOPPED, RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.run.runner import Progress

TOP_MAX = 1_000


@click.command()
@click.argument("name", metavar="NAME", type=click.Choice(sorted(SHIPPED)))
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC|INPUT=TOPIC",
    help="The topic to read. [default: the name in `pipeline list`]",
)
@click.option(
    "--to", "to_topic", metavar="TOPIC", help="The topic to write to. [default: the name in `pipeline list`]"
)
@click.option("--table", metavar="FILE", help="The CSV file that the pipeline joins with.")
@home_option
@click.option("--output", metavar="DIR", help="The folder for tables and checkpoint.  [default: HOME/NAME]")
@click.option(
    "--bootstrap-server",
    envvar="NILOMETER_BOOTSTRAP_SERVER",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT[,...]",
    help="Brokers to connect to first, as HOST:PORT[,...].",
)
@click.option("--available-now", is_flag=True, help="Read the records that exist now, then stop.")
@click.option(
    "--every",
    "seconds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Seconds between the starts of two micro-batches.",
)
@click.option(
    "--connector",
    type=click.Choice(["nilometer", "kafka"]),
    default="nilometer",
    show_default=True,
    help="Nilometer's own source, or Spark's Kafka connector.",
)
@click.option(
    "--connector-jars",
    envvar="NILOMETER_CONNECTOR_JARS",
    type=click.Path(exists=True, file_okay=False),
    help="A folder with the jars of Spark's Kafka connector. Without it, Spark downloads them through Maven.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of timestamps in log lines that name no zone.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option KEY=VALUE of the data source; repeatable.",
)
@click.option(
    "--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark setting KEY=VALUE; repeatable."
)
@click.option(
    "--spark-log", type=click.Path(dir_okay=False, path_type=Path), help="The file that Spark's log goes to."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@click.option(
    "--top",
    type=click.IntRange(1, TOP_MAX),
    default=10,
    show_default=True,
    help="The number of rows in top lists.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write tables and plots to this HTML page.",
)
def run(
    name: str,
    topics: tuple[str, ...],
    to_topic: str | None,
    table: str | None,
    home: str,
    output: str | None,
    bootstrap_server: str,
    available_now: bool,
    seconds: int,
    connector: str,
    connector_jars: str | None,
    master: str,
    timezone: str,
    options: tuple[str, ...],
    settings: tuple[str, ...],
    spark_log: Path | None,
    as_json: bool,
    top: int,
    report: Path | None,
) -> None:
    """Run a pipeline, until Ctrl-C or `pipeline stop` or, with --available-now, until all is read.

    It continues where its last run ended. The checkpoint is stored next to the tables.
    """
    from nilometer.pipeline.run import runner
    from nilometer.pipeline.spark.java import require_java
    from nilometer.pipeline.spark.spark_session import build_session, connector_settings

    shipped = SHIPPED[name]
    output = output or str(Path(home, name))
    job = runner.Job(
        topic=",".join(named_topics(shipped, topics).values()),
        output=output,
        bootstrap_servers=bootstrap_server,
        connector=connector,
        available_now=available_now,
        seconds=seconds,
        options=parse_pairs(options, "--option"),
        to_topic=_needed(name, "--to", to_topic or shipped.writes, shipped.writes),
        table=_needed(name, "--table", table, shipped.table),
    )
    spark_settings = parse_pairs(settings, "--conf")
    log_file = spark_log or _default_log(output)
    console = Console(stderr=True)
    folder = RunFolder(home, name)
    try:
        require_java()
        runner.check_output(output)
        runner.check_table(table)
        runner.check_source(job)
        record = folder.begin(list(job.topics), output)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    state, error_text = FAILED, None
    wanted_stop: list[int] = []
    exit_on_sigterm()
    try:
        with console.status("Starting Spark ..."):
            if connector == "kafka":
                spark_settings = {**connector_settings(connector_jars), **spark_settings}
            spark = build_session(
                name, master=master, timezone=timezone, settings=spark_settings, log_file=log_file
            )
        wanted_stop = stop_on_signals()
        module = shipped.load()
        with console.status(f"Running {name} on {job.topic} ...") as status:

            def on_progress(progress: Progress) -> None:
                folder.on_progress(record, progress.to_json())
                status.update(progress_line(progress))

            last = runner.run(spark, module, job, on_progress=on_progress, stopped=lambda: bool(wanted_stop))
        state = STOPPED if wanted_stop else FINISHED
        if last is None and not Path(output, "checkpoint", "commits", "0").exists():
            _print_no_records(job.topic, as_json=as_json)
        else:
            _show(module.results(spark, output, top), last, as_json=as_json)
            if report is not None:
                render_report(spark, module, shipped, folder, output, report)
                console.print(f"Report: {report}", highlight=False)
        spark.stop()
    except PipelineError as error:
        error_text = str(error)
        raise click.ClickException(error_text) from None
    except (KeyboardInterrupt, SystemExit):
        state = STOPPED
        raise
    except Exception as error:
        if wanted_stop:
            # A signal to the whole process group ends Spark's processes too, in the middle of a batch.
            state = STOPPED
            raise click.ClickException(
                "the same signal stopped Spark during a batch; the next run repeats that batch"
            ) from error
        error_text = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        raise click.ClickException(f"{error_text} (more in {log_file})") from error
    finally:
        folder.end(record, state, error_text)


def _needed(pipeline_name: str, option: str, given: str | None, what: str | None) -> str | None:
    if given is not None and what is None:
        raise click.UsageError(f"{option}: {pipeline_name} does not have this option")
    if given is None and what is not None:
        raise click.UsageError(f"{option} is needed: {pipeline_name} takes a CSV file with columns {what}")
    return given


def _print_no_records(topic: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"results": {}, "event_time_watermark": None, "offsets": {}}))
    else:
        click.echo(f"Topic {topic} has no records yet")


def _show(results: dict[str, DataFrame], last: Progress | None, *, as_json: bool) -> None:
    tables = tables_of(results)
    if as_json:
        watermark = last.event_time_watermark if last else None
        offsets: Mapping[str, Mapping[str, int]] = last.end_offsets if last else {}
        listing = {"results": tables, "event_time_watermark": watermark, "offsets": offsets}
        click.echo(json.dumps(listing, default=str))
        return
    console = Console()
    print_tables(console, tables)
    if last is not None:
        print_position(console, last)


def _default_log(output: str) -> Path:
    return Path("spark.log") if "://" in output else Path(output) / "spark.log"
