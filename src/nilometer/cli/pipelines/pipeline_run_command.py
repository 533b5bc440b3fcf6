"""``nilometer pipeline run``: runs a pipeline on Spark, until it is stopped or has read everything.

Nothing of Spark is imported before it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nilometer.cli import commands
from nilometer.cli.cluster_options import command_config_option, given_client_config, parse_pairs
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.pipeline_choice import choice_options, choose
from nilometer.cli.pipelines.pipeline_formats_commands import UNRECOGNISED_EXIT_CODE
from nilometer.cli.pipelines.pipeline_lines import (
    RunAccount,
    account_of_run,
    check_any_recognised,
    check_finish,
    open_note,
    print_account,
    print_tally,
    rejected_text,
    too_many_text,
)
from nilometer.cli.pipelines.pipeline_results import print_position, print_tables, progress_line, tables_of
from nilometer.cli.pipelines.pipeline_state_commands import home_option, open_page, render_report
from nilometer.cli.pipelines.pipeline_topics import named_topics
from nilometer.cli.signals import exit_on_sigterm, stop_on_signals
from nilometer.pipeline.csv_table import check_table
from nilometer.pipeline.errors import PipelineError, readable
from nilometer.pipeline.formats.tally import Tally
from nilometer.pipeline.run.catalogue import DEAD_LETTERS
from nilometer.pipeline.run.run_record import FAILED, FINISHED, STOPPED, RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.run.runner import Progress

TOP_MAX = 1_000
RESULTS_WIDTH = 80
"""The width of tables of results that are written to a file or a pipe."""


@commands.command()
@click.argument("pipeline", metavar="NAME|FILE.py")
@click.option(
    "--name", "run_name", metavar="NAME", help="The run's name in HOME.  [default: the pipeline's name]"
)
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
@click.option(
    "--dead-letters",
    metavar="TOPIC",
    default=DEAD_LETTERS,
    show_default=True,
    help="The topic of rejected records, with the reason of each.",
)
@click.option("--table", metavar="FILE", help="The CSV file that the pipeline joins with.")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["delta", "iceberg", "parquet"]),
    help="The kind of table that the pipeline writes; short for --set format=KIND.",
)
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
@command_config_option
@choice_options
@click.option(
    "--max-unrecognised",
    type=click.FloatRange(0, 100),
    default=20,
    show_default=True,
    metavar="PERCENT",
    help="Exit with code 3 if more lines than this are of no format.",
)
@click.option(
    "--max-rejected",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Exit with code 3 if more records than this are rejected.  [default: that of --max-unrecognised]",
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
    "--finish",
    is_flag=True,
    help="With --available-now: also write what is still open, such as sessions, as if the input ended here.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write tables and plots to this HTML page.",
)
@click.option("--open", "opened", is_flag=True, help="Open the report in a browser.")
def run(
    pipeline: str,
    run_name: str | None,
    topics: tuple[str, ...],
    to_topic: str | None,
    dead_letters: str,
    table: str | None,
    table_format: str | None,
    home: str,
    output: str | None,
    bootstrap_server: str,
    format_files: tuple[Path, ...],
    pairs: tuple[str, ...],
    settings_files: tuple[Path, ...],
    max_unrecognised: float,
    max_rejected: float | None,
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
    finish: bool,
    report: Path | None,
    opened: bool,
) -> None:
    """Run a pipeline, until Ctrl-C or `pipeline stop` or, with --available-now, until all is read.

    It is a shipped one, or a file of your own. It continues where its last run ended. The checkpoint is
    stored next to the tables.
    """
    import_module("pyspark")  # if it is missing, what to install is said before anything else
    from nilometer.pipeline.batches import RunFiles
    from nilometer.pipeline.run import runner
    from nilometer.pipeline.spark.executors import lack_of, require_shared
    from nilometer.pipeline.spark.java import require_java
    from nilometer.pipeline.spark.spark_session import build_session, connector_settings

    if table_format is not None:
        pairs = (*pairs, f"format={table_format}")
    chosen = choose(pipeline, format_files, pairs, settings_files)
    shipped, module = chosen.shipped, chosen.module
    name = run_name or shipped.name
    output = output or str(Path(home, name))
    check_finish(finish, shipped, module, output, available_now=available_now)
    if report is None and opened:
        report = Path(home, name, "report.html")
    job = runner.Job(
        topic=",".join(named_topics(shipped, topics).values()),
        output=output,
        bootstrap_servers=bootstrap_server,
        connector=connector,
        available_now=available_now,
        seconds=seconds,
        options=parse_pairs(options, "--option"),
        client=given_client_config(),
        to_topic=_needed(shipped.name, "--to", to_topic or shipped.writes, shipped.writes),
        dead_letters=dead_letters,
        table=_needed(shipped.name, "--table", table, shipped.table),
        formats=chosen.formats,
        settings=chosen.settings,
    )
    spark_settings = parse_pairs(settings, "--conf")
    log_file = spark_log or _default_log(output)
    console = OutputConsole(stderr=True)
    folder = RunFolder(home, name)
    try:
        require_java()
        runner.check_output(output, job.topics)
        runner.check_settings(module, job)
        if table is not None and shipped.table is not None:
            check_table(table, shipped.table)
        runner.check_source(job)
        record = folder.begin(list(job.topics), output, pipeline=pipeline, settings=chosen.given)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    state, error_text = FAILED, None
    too_many: str | None = None
    wanted_stop: list[int] = []
    exit_on_sigterm()
    try:
        with console.status("Starting Spark ..."):
            if connector == "kafka":
                spark_settings = {**connector_settings(connector_jars), **spark_settings}
            spark = build_session(
                name, master=master, timezone=timezone, settings=spark_settings, log_file=log_file
            )
            if not master.startswith("local") and "://" not in output:
                require_shared(spark, Path(output))
        wanted_stop = stop_on_signals()
        files = RunFiles(spark, output)
        began = files.last()
        with console.status(f"Running {name} on {job.topic} ...") as status:

            def on_progress(progress: Progress) -> None:
                folder.on_progress(record, progress.to_json())
                status.update(progress_line(progress))

            last = runner.run(spark, module, job, on_progress=on_progress, stopped=lambda: bool(wanted_stop))
        state = STOPPED if wanted_stop else FINISHED
        if last is None and not Path(output, "checkpoint", "commits", "0").exists():
            _print_no_records(job.topic, as_json=as_json)
        else:
            tally = folder.tally(output)
            check_any_recognised(tally, shipped, job)
            if finish:
                runner.finish(spark, module, job)
            results = module.results(
                spark, output, top, **runner.accepted(module.results, settings=job.settings)
            )
            account = account_of_run(began, files.last(), dead_letters)
            _show(results, last, tally, account, as_json=as_json, finished=finish)
            if report is not None:
                render_report(spark, module, shipped, folder, output, report, chosen.settings)
                console.print(f"Report: {report}", highlight=False)
                open_page(report, opened=opened)
            if tally is not None and tally.unrecognised_share * 100 > max_unrecognised:
                too_many = too_many_text(tally, max_unrecognised)
            elif account is not None:
                most = max_unrecognised if max_rejected is None else max_rejected
                too_many = rejected_text(account, most)
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
        first_line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        error_text = readable(error) or lack_of(error) or first_line
        raise click.ClickException(f"{error_text} (more in {log_file})") from error
    finally:
        folder.end(record, state, error_text)
    if too_many:
        click.echo(too_many, err=True)
        raise SystemExit(UNRECOGNISED_EXIT_CODE)


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


def _show(
    results: dict[str, DataFrame],
    last: Progress | None,
    tally: Tally | None,
    account: RunAccount | None,
    *,
    as_json: bool,
    finished: bool,
) -> None:
    tables = tables_of(results)
    notes = open_note(account, finished=finished) if account is not None else []
    if as_json:
        watermark = last.event_time_watermark if last else None
        offsets: Mapping[str, Mapping[str, int]] = last.end_offsets if last else {}
        listing: dict[str, Any] = {"results": tables, "event_time_watermark": watermark, "offsets": offsets}
        listing |= {"lines": tally.to_json() if tally is not None else None, "notes": notes}
        listing["account"] = account.to_json() if account is not None else None
        click.echo(json.dumps(listing, default=str))
        return
    console = OutputConsole(RESULTS_WIDTH)
    print_tables(console, tables)
    if tally is not None:
        print_tally(tally)
    if account is not None:
        print_account(account)
    for note in notes:
        console.print(note, highlight=False)
    if last is not None:
        print_position(console, last)


def _default_log(output: str) -> Path:
    return Path("spark.log") if "://" in output else Path(output) / "spark.log"
