"""``nilometer pipeline list | run``: the shipped Spark pipelines.

Nothing of Spark is imported before a pipeline runs.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from nilometer.pipeline.catalogue import SHIPPED
from nilometer.pipeline.errors import PipelineProblem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.runner import Progress

TOP_MAX = 1_000


@click.group()
def pipeline() -> None:
    """Run the shipped pipelines on Spark: topics into tables."""


@pipeline.command("list")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def list_pipelines(as_json: bool) -> None:
    """The pipelines there are."""
    if as_json:
        listing = [
            {"name": one.name, "module": one.module, "summary": one.summary} for one in SHIPPED.values()
        ]
        click.echo(json.dumps({"pipelines": listing}))
        return
    table = Table("name", "what it does")
    table.add_column("file to copy", overflow="fold")
    for one in SHIPPED.values():
        table.add_row(one.name, one.summary, one.module.replace(".", "/") + ".py")
    Console().print(table)


@pipeline.command()
@click.argument("name", type=click.Choice(sorted(SHIPPED)))
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--output", required=True, metavar="DIR", help="Where tables and checkpoint go.")
@click.option(
    "--bootstrap-server",
    envvar="NILOMETER_BOOTSTRAP_SERVER",
    default="127.0.0.1:9092",
    show_default=True,
    metavar="HOST:PORT[,...]",
    help="The brokers to ask first.",
)
@click.option("--available-now", is_flag=True, help="Read all there is, then stop.")
@click.option(
    "--every", "seconds", type=click.IntRange(1), default=5, show_default=True, help="Seconds per batch."
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
    help="A folder with the jars of Spark's connector; without it Spark fetches them through Maven.",
)
@click.option("--master", default="local[*]", show_default=True, help="The Spark master.")
@click.option("--timezone", default="UTC", show_default=True, help="Of times that state none.")
@click.option(
    "--option", "options", multiple=True, metavar="KEY=VALUE", help="A further option of the source."
)
@click.option(
    "--spark-log", type=click.Path(dir_okay=False, path_type=Path), help="Where Spark's messages go."
)
@click.option("--json", "as_json", is_flag=True, help="The results, for programs.")
@click.option(
    "--top", type=click.IntRange(1, TOP_MAX), default=10, show_default=True, help="Rows of top lists."
)
def run(
    name: str,
    topic: str,
    output: str,
    bootstrap_server: str,
    available_now: bool,
    seconds: int,
    connector: str,
    connector_jars: str | None,
    master: str,
    timezone: str,
    options: tuple[str, ...],
    spark_log: Path | None,
    as_json: bool,
    top: int,
) -> None:
    """Run a pipeline over a topic, until Ctrl-C or, with --available-now, until all is read."""
    from nilometer.pipeline import runner
    from nilometer.pipeline.java import require_java
    from nilometer.pipeline.spark_session import build_session, connector_settings

    job = runner.Job(
        topic=topic,
        output=output,
        bootstrap_servers=bootstrap_server,
        connector=connector,
        available_now=available_now,
        seconds=seconds,
        options=_parse_options(options),
    )
    log_file = spark_log or _default_log(output)
    console = Console(stderr=True)
    try:
        require_java()
        runner.check_source(job)
        runner.check_output(output)
        with console.status("Starting Spark ..."):
            settings = connector_settings(connector_jars) if connector == "kafka" else {}
            spark = build_session(
                name, master=master, timezone=timezone, settings=settings, log_file=log_file
            )
        wanted_stop = _stop_on_signals()
        module = SHIPPED[name].load()
        with console.status(f"Running {name} on topic {topic} ...") as status:
            last = runner.run(
                spark,
                module,
                job,
                on_progress=lambda progress: status.update(progress_line(progress)),
                stopped=lambda: bool(wanted_stop),
            )
        _show(module.results(spark, output, top), last, as_json=as_json)
        spark.stop()
    except PipelineProblem as problem:
        raise click.ClickException(str(problem)) from None
    except Exception as problem:
        first_line = str(problem).strip().partition("\n")[0]
        raise click.ClickException(
            f"{type(problem).__name__}: {first_line} (more in {log_file})"
        ) from problem


def progress_line(progress: Progress) -> str:
    offsets = ", ".join(
        f"{topic} {sum(partitions.values())}" for topic, partitions in sorted(progress.end_offsets.items())
    )
    rate = f"{progress.rows_per_second:.0f}/s"
    line = f"batch {progress.batch_id}: {progress.rows} records, {rate}, read up to {offsets}"
    if progress.event_time_watermark is not None:
        line += f", event-time watermark {progress.event_time_watermark:%Y-%m-%d %H:%M}"
    return line


def tables_of(results: dict[str, DataFrame]) -> dict[str, list[dict[str, object]]]:
    """The rows of each result, as Python values."""
    return {title: [row.asDict() for row in frame.collect()] for title, frame in results.items()}


def print_tables(console: Console, tables: dict[str, list[dict[str, object]]]) -> None:
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left")
        for column in rows[0] if rows else ():
            table.add_column(column, justify="right" if column == "lines" else "left", overflow="fold")
        for row in rows:
            table.add_row(*[f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()])
        console.print(table)


def print_position(console: Console, last: Progress) -> None:
    """How far the job has come, in offsets and in event time: two things that are easily mixed up."""
    for topic, partitions in sorted(last.end_offsets.items()):
        offsets = ", ".join(
            f"{number}: {offset:,}" for number, offset in sorted(partitions.items(), key=_number)
        )
        console.print(f"Read {topic} up to offsets {offsets}", highlight=False)
    if last.event_time_watermark is not None:
        console.print(
            f"Event-time watermark {last.event_time_watermark:%Y-%m-%d %H:%M:%S}: "
            "minutes before it are taken to be complete",
            highlight=False,
        )


def _number(item: tuple[str, int]) -> int:
    return int(item[0])


def _show(results: dict[str, DataFrame], last: Progress | None, *, as_json: bool) -> None:
    tables = tables_of(results)
    if as_json:
        watermark = last.event_time_watermark if last else None
        offsets = last.end_offsets if last else {}
        listing = {"results": tables, "event_time_watermark": watermark, "offsets": offsets}
        click.echo(json.dumps(listing, default=str))
        return
    console = Console()
    print_tables(console, tables)
    if last is not None:
        print_position(console, last)


def _parse_options(options: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in options:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--option takes KEY=VALUE, not {item!r}")
        values[key] = value
    return values


def _default_log(output: str) -> Path:
    return Path("spark.log") if "://" in output else Path(output) / "spark.log"


def _stop_on_signals() -> list[int]:
    """A list that is empty until Ctrl-C or SIGTERM; a second Ctrl-C ends the program at once."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received:
            sys.exit(128 + number)
        received.append(number)

    signal.signal(signal.SIGINT, receive)
    signal.signal(signal.SIGTERM, receive)
    return received
