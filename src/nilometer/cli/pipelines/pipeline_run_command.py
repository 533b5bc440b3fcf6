"""``nilometer pipeline run``: runs a pipeline on Spark, until it is stopped or has read everything.

It prints the progress, the result tables and the position, and what became of the records: the account, and
the lines read, recognised and skipped by file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nilometer.cli import commands
from nilometer.cli.cluster_options import (
    bootstrap_option,
    command_config_option,
    given_client_config,
    parse_pairs,
)
from nilometer.cli.console import OutputConsole
from nilometer.cli.pipelines.pipeline_choice import choice_options, choose, named_topics, topics_options
from nilometer.cli.pipelines.pipeline_formats_commands import UNRECOGNISED_EXIT_CODE
from nilometer.cli.pipelines.pipeline_state_commands import home_option, open_page, render_report
from nilometer.cli.process import exit_on_sigterm, stop_on_signals
from nilometer.pipeline.account import Accounts, accounts_json, accounts_since
from nilometer.pipeline.csv_table import check_table
from nilometer.pipeline.errors import PipelineError, readable
from nilometer.pipeline.formats.tally import Tally, share
from nilometer.pipeline.mapped_rows import result_rows
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run.catalogue import DEAD_LETTERS, PipelineModule, Shipped
from nilometer.pipeline.run.run_record import FAILED, FINISHED, STOPPED, RunFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.batches import Done
    from nilometer.pipeline.run.runner import Job, Progress


# Prints a pipeline's progress, its result tables and its position.


def progress_line(progress: Progress) -> str:
    offsets = ", ".join(
        f"{topic} {sum(partitions.values())}" for topic, partitions in sorted(progress.end_offsets.items())
    )
    rates = f"in {progress.input_rows_per_second:,.0f}/s, processed {progress.rows_per_second:,.0f}/s"
    line = f"batch {progress.batch_id}: {progress.rows:,} records, {rates}, lag {progress.lag:,}"
    line += f", read up to {offsets}"
    if progress.event_time_watermark is not None:
        line += f", event-time watermark {progress.event_time_watermark:%Y-%m-%d %H:%M}"
    return line


def tables_of(results: dict[str, DataFrame]) -> dict[str, list[dict[str, object]]]:
    """Return the rows of each result table, as Python values, by title."""
    return {title: [row.asDict() for row in result_rows(frame)] for title, frame in results.items()}


def print_tables(console: Console, tables: dict[str, list[dict[str, object]]]) -> None:
    for title, rows in tables.items():
        if not rows:
            console.print(f"{title}\nnone yet\n", highlight=False)
            continue
        table = Table(title=title, title_justify="left")
        for column in rows[0]:
            table.add_column(column, justify="right" if column == "lines" else "left", overflow="fold")
        for row in rows:
            table.add_row(*[f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()])
        console.print(table)


def print_position(console: Console, last: Progress) -> None:
    """Print the position of the job: the offsets read, and the event-time watermark."""
    for topic, partitions in sorted(last.end_offsets.items()):
        offsets = ", ".join(
            f"{number}: {offset:,}" for number, offset in sorted(partitions.items(), key=_number)
        )
        console.print(f"Read {topic} up to offsets {offsets}", highlight=False)
    if last.event_time_watermark is not None:
        console.print(
            f"Event-time watermark {last.event_time_watermark:%Y-%m-%d %H:%M:%S}: "
            "minutes before it count as complete",
            highlight=False,
        )


def _number(item: tuple[str, int]) -> int:
    return int(item[0])


# What a run says about its records: the account, and lines read, recognised and skipped by file.

FILES_SHOWN = 10
REASONS_SHOWN = 3
WIDTH = 140


def check_any_recognised(tally: Tally | None, shipped: Shipped, job: Job) -> None:
    """Raise PipelineError, with what was tried, if there are lines and none was recognised."""
    if tally is None or tally.recognised or not tally.unrecognised:
        return
    tried = dict.fromkeys(one.name for one in (job.formats or Formats()).definitions())
    samples = "".join(f"\n  {line}" for line in tally.samples())
    raise PipelineError(
        f"none of the {tally.unrecognised:,} lines of {job.topic} is of a format that {shipped.name} reads. "
        f"Tried: {', '.join(tried)}. The lines are such as:{samples}\n"
        "`nilometer pipeline formats test FILE` shows which format takes which line, and proposes formats "
        "for --formats"
    )


def check_finish(
    finish: bool, shipped: Shipped, module: PipelineModule, output: str, *, available_now: bool
) -> None:
    """Raise UsageError if ``--finish`` cannot be done."""
    if not finish:
        return
    if not hasattr(module, "finish"):
        raise click.UsageError(f"--finish: {shipped.name} leaves nothing open that could be closed")
    if not available_now:
        raise click.UsageError("--finish needs --available-now: input without an end leaves something open")
    if "://" in output:
        raise click.UsageError("--finish needs an --output on this machine")


def too_many_text(tally: Tally, most: float) -> str:
    return (
        f"WARNING: {tally.unrecognised:,} of {tally.lines - tally.blank:,} lines "
        f"({tally.unrecognised_share:.1%}) are of no known format; --max-unrecognised is "
        f"{most:g} %. `nilometer pipeline formats test FILE` proposes formats for them"
    )


def print_tally(tally: Tally) -> None:
    """Print lines read, recognised and skipped, by file, with samples of the skipped ones."""
    console = OutputConsole(WIDTH)
    console.print(
        f"{tally.lines:,} lines: {tally.recognised:,} recognised, {tally.blank:,} blank, "
        f"{tally.unrecognised:,} of no known format ({tally.unrecognised_share:.1%})"
    )
    files = tally.files()
    if any(file["path"] for file in files):
        table = Table(title="Lines by file", title_justify="left")
        table.add_column("file", overflow="fold")
        for column in ("lines", "recognised", "no format", "share"):
            table.add_column(column, justify="right")
        for file in files[:FILES_SHOWN]:
            lost = share(file["unrecognised"], file["lines"] - file["blank"])
            numbers = (f"{file[key]:,}" for key in ("lines", "recognised", "unrecognised"))
            table.add_row(Text(file["path"] or "(not from ingest)"), *numbers, f"{lost:.1%}")
        console.print(table)
        if len(files) > FILES_SHOWN:
            console.print(f"... and {len(files) - FILES_SHOWN:,} more files (--json lists them)")
    if tally.unrecognised:
        console.print("Lines of no known format are such as:")
        for line in tally.samples():
            console.print(Text(f"  {line}"), soft_wrap=True)


class RunAccount(msgspec.Struct, frozen=True):
    """What became of the records of a run, and of all runs of its checkpoint."""

    run: Accounts
    totals: Accounts
    notes: Mapping[str, int]
    watermark: datetime | None
    letters: str
    """The topic of dead letters."""

    def to_json(self) -> dict[str, Any]:
        return {
            "run": accounts_json(self.run),
            "all_runs": accounts_json(self.totals),
            "notes": dict(self.notes),
            "dead_letters": self.letters,
        }


def account_of_run(began: Done | None, last: Done | None, letters: str) -> RunAccount | None:
    """Return the account of what came after ``began``; None if the pipeline keeps none."""
    if last is None:
        return None
    run = accounts_since(began.totals if began is not None else {}, last.totals)
    return RunAccount(run, last.totals, last.notes, last.watermark, letters)


def print_account(account: RunAccount) -> None:
    """Print what became of every record: of this run, and of all runs if there were others."""
    console = OutputConsole(WIDTH)
    parts = [("Account of all runs", account.totals)]
    if accounts_json(account.run) != accounts_json(account.totals):
        parts.insert(0, ("Account of this run", account.run))
    for title, accounts in parts:
        console.print(title)
        for name, one in accounts.items():
            for line in one.lines(name or "records"):
                console.print(Text(f"  {line}"), soft_wrap=True)
    if any(one.of("rejected") for one in account.totals.values()):
        console.print(Text(f"  Rejected records are in topic {account.letters}, each with the reason"))
    for note, rows in account.notes.items():
        console.print(Text(f"  {rows:,} {note}"), soft_wrap=True)


def rejected_text(account_of_run: RunAccount, most: float) -> str | None:
    """Return a warning if more than ``most`` percent of an input's records were rejected; else None."""
    for name, account in account_of_run.run.items():
        if account.rejected_share * 100 > most:
            reasons = sorted(account.became["rejected"].items(), key=lambda one: -one[1])
            said = "; ".join(f"{records:,} {reason}" for reason, records in reasons[:REASONS_SHOWN])
            return (
                f"WARNING: {account.of('rejected'):,} of {account.read:,} {name or 'records'} "
                f"({account.rejected_share:.1%}) were rejected; --max-rejected is {most:g} %. They are in "
                f"topic {account_of_run.letters}: {said}"
            )
    return None


def open_note(account: RunAccount, *, finished: bool) -> list[str]:
    """Return what is said of records whose results are not written yet."""
    still_open = sum(one.open for one in account.totals.values())
    if not still_open:
        return []
    if finished:
        return [
            f"--finish has written the results of {still_open:,} open records too. They stay open for later "
            "input, and are written again when they end"
        ]
    at = f" ({account.watermark:%Y-%m-%d %H:%M:%S})" if account.watermark is not None else ""
    return [
        f"The results of {still_open:,} records are still open: they are written when the event-time "
        f"watermark{at} has passed their end"
    ]


# The command.
#
# Nothing of Spark is imported before it runs.

TOP_MAX = 1_000
RESULTS_WIDTH = 80
"""The width of tables of results that are written to a file or a pipe."""


@commands.command()
@click.argument("pipeline", metavar="NAME|FILE.py")
@click.option(
    "--name", "run_name", metavar="NAME", help="The run's name in HOME.  [default: the pipeline's name]"
)
@topics_options
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
@bootstrap_option
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
    bootstrap: str,
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
        bootstrap_servers=bootstrap,
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
