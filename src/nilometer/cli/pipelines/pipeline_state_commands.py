"""``nilometer pipeline status | stop | report``: shows runs, stops them, and writes reports of results."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from nilometer.cli.signals import exit_on_sigterm
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run.catalogue import SHIPPED, Shipped
from nilometer.pipeline.run.run_record import HOME, RUNNING, RunFolder, RunRecord, runs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nilometer.pipeline.run.catalogue import PipelineModule

home_option = click.option(
    "--home",
    envvar="NILOMETER_PIPELINES",
    default=HOME,
    show_default=True,
    metavar="DIR",
    help="The folder that holds the state of pipeline runs, tables and checkpoints.",
)


PIPED_WIDTH = 160


def table_console() -> Console:
    """Return a console as wide as the terminal; without one, wide enough that table rows do not wrap."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPED_WIDTH)


@click.command()
@click.argument("name", required=False)
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def status(name: str | None, home: str, as_json: bool) -> None:
    """Show the last batch of each pipeline, with its rates and its lag."""
    found = [record for record in runs(home) if name is None or record.name == name]
    if name is not None and not found:
        raise click.ClickException(f"{name} has never run in {home}")
    if as_json:
        click.echo(json.dumps({"runs": [asdict(record) for record in found]}))
        return
    if not found:
        click.echo(f"No pipeline has run in {home} yet. `nilometer pipeline list` shows the pipelines.")
        return
    table = Table("pipeline", "state", "reads")
    for heading in ("batch", "records", "in/s", "processed/s", "lag"):
        table.add_column(heading, justify="right")
    table.add_column("watermark")
    for record in found:
        table.add_row(record.name, _state(record), ", ".join(record.topics), *_progress(record.progress))
    table_console().print(table)
    for record in found:
        if record.problem:
            click.echo(f"{record.name}: {record.problem}")


def _state(record: RunRecord) -> str:
    return f"{record.state} ({record.pid})" if record.state == RUNNING else record.state


def _progress(progress: dict[str, Any]) -> list[str]:
    if not progress:
        return ["-"] * 6
    watermark = progress["event_time_watermark"]
    return [
        str(progress["batch_id"]),
        f"{progress['rows']:,}",
        f"{progress['input_rows_per_second']:,.0f}",
        f"{progress['rows_per_second']:,.0f}",
        f"{progress['lag']:,}",
        f"{datetime.fromisoformat(watermark):%Y-%m-%d %H:%M:%S}" if watermark else "-",
    ]


@click.command()
@click.argument("name")
@home_option
def stop(name: str, home: str) -> None:
    """Stop a pipeline after its current batch, and wait until it has stopped."""
    try:
        record = RunFolder(home, name).stop()
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    at = f" after batch {record.progress['batch_id']}" if record.progress else ""
    click.echo(f"{name} has {record.state}{at}")


@click.command("report")
@click.argument("name", metavar="NAME", type=click.Choice(sorted(SHIPPED)))
@home_option
@click.option(
    "--output",
    metavar="DIR",
    help="The folder with the pipeline's tables.  [default: the folder of the last run]",
)
@click.option(
    "--report",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The HTML page to write.  [default: HOME/NAME/report.html]",
)
def report_command(name: str, home: str, output: str | None, path: Path | None) -> None:
    """Write tables and plots of the results of a pipeline to an HTML page."""
    from nilometer.pipeline.spark.spark_session import build_session

    folder = RunFolder(home, name)
    record = folder.read()
    where = output or (record.output if record is not None else None)
    if where is None:
        raise click.ClickException(
            f"{name} has never run in {home}; give the folder of its tables with --output"
        )
    path = path or folder.path / "report.html"
    exit_on_sigterm()
    try:
        spark = build_session(f"report of {name}", log_file=folder.path / "spark.log", quick=True)
        render_report(spark, SHIPPED[name].load(), SHIPPED[name], folder, where, path)
        spark.stop()
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    click.echo(str(path))


def render_report(
    spark: SparkSession,
    module: PipelineModule,
    shipped: Shipped,
    folder: RunFolder,
    output: str,
    path: Path,
) -> None:
    from nilometer.pipeline.run.run_report import Report, write_report

    charts = getattr(module, "charts", None)
    page = Report(
        name=shipped.name,
        summary=shipped.summary,
        tables=module.results(spark, output),
        charts=charts(spark, output) if charts is not None else {},
        progress=folder.progress(),
    )
    write_report(page, path)
