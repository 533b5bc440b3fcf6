"""``nilometer pipeline status | stop | report``: shows runs, stops them, and writes reports of results."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from nilometer.cli import commands
from nilometer.cli.console import pipeline_console
from nilometer.cli.pipelines.pipeline_choice import find, settings_of
from nilometer.cli.process import exit_on_sigterm
from nilometer.metrics import Family, Kind, header, series_text
from nilometer.pipeline.account import FATES, accounts_of
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


READ = Family(
    "nilometer_pipeline_read_records_total",
    Kind.COUNTER,
    "Records that a pipeline has read from an input.",
    ("pipeline", "input"),
)
BECAME = Family(
    "nilometer_pipeline_records_total",
    Kind.COUNTER,
    "Records that a pipeline is done with, by what became of them.",
    ("pipeline", "input", "fate"),
)
OPEN = Family(
    "nilometer_pipeline_open_records",
    Kind.GAUGE,
    "Records whose result later input may change.",
    ("pipeline", "input"),
)


@commands.command()
@click.argument("name", required=False)
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option(
    "--metrics",
    "as_metrics",
    is_flag=True,
    help="Print the accounts in Prometheus' text format, such as for a textfile collector.",
)
def status(name: str | None, home: str, as_json: bool, as_metrics: bool) -> None:
    """Show the last batch of each pipeline, with its rates and its lag, and the account of all its runs."""
    found = [record for record in runs(home) if name is None or record.name == name]
    if name is not None and not found:
        raise click.ClickException(
            f"pipeline {name} has never run in {home}: --home names another folder; without a name all runs "
            "are shown"
        )
    if as_json:
        click.echo(json.dumps({"runs": [asdict(record) for record in found]}))
        return
    if as_metrics:
        click.echo(_metrics(found), nl=False)
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
    pipeline_console().print(table)
    for record in found:
        for name_of_input, account in accounts_of(record.progress.get("totals") or {}).items():
            click.echo("\n".join(account.lines(f"{record.name}: {name_of_input or 'records'}")))
        if record.problem:
            click.echo(f"{record.name}: {record.problem}")


def _metrics(records: Sequence[RunRecord]) -> str:
    text = {family: header(family) for family in (READ, BECAME, OPEN)}
    for record in records:
        for name, account in accounts_of(record.progress.get("totals") or {}).items():
            labels = (record.name, name or record.topics[0])
            text[READ] += series_text(READ, labels, account.read)
            text[OPEN] += series_text(OPEN, labels, account.open)
            for fate in FATES:
                text[BECAME] += series_text(BECAME, (*labels, fate), account.of(fate))
    return "".join(text.values())


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


@commands.command()
@click.argument("name")
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def stop(name: str, home: str, as_json: bool) -> None:
    """Stop a pipeline after its current batch, and wait until it has stopped."""
    try:
        record = RunFolder(home, name).stop()
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    batch = record.progress["batch_id"] if record.progress else None
    if as_json:
        click.echo(json.dumps({"name": name, "state": record.state, "batch": batch}))
        return
    at = f" after batch {batch}" if record.progress else ""
    click.echo(f"{name} has {record.state}{at}")


@commands.command("report")
@click.argument("names", metavar="[NAME]...", nargs=-1)
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
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def report_command(
    names: tuple[str, ...],
    home: str,
    output: str | None,
    path: Path | None,
    opened: bool,
    as_json: bool,
) -> None:
    """Write tables and plots of the results of a pipeline to an HTML page.

    Of several pipelines, or without a NAME of all that have run, it writes a page of each and HOME/index.html
    with links to them.
    """
    from nilometer.pipeline.spark.spark_session import build_session

    several = len(names) != 1
    if several and (output is not None or path is not None):
        raise click.UsageError("--output and --report are for the report of one pipeline: give its NAME")
    chosen = list(names) or [record.name for record in runs(home)]
    if not chosen:
        raise click.ClickException(f"no pipeline has run in {home}")
    exit_on_sigterm()
    try:
        places = [_place_of(home, name, output) for name in chosen]
        log_file = Path(home) / "spark.log" if several else RunFolder(home, names[0]).path / "spark.log"
        spark = build_session("reports", log_file=log_file, quick=True)
        pages = [
            _write_one(spark, home, name, *place, path) for name, place in zip(chosen, places, strict=True)
        ]
        spark.stop()
        page = pages[0] if not several else write_index(home, chosen)
    except PipelineError as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps({"report": str(page)}) if as_json else str(page))
    open_page(page, opened=opened)


def _place_of(home: str, name: str, output: str | None) -> tuple[str, str, dict[str, Any]]:
    """Return the pipeline of a run, the folder of its tables, and its settings. Raises PipelineError."""
    record = RunFolder(home, name).read()
    where = output or (record.output if record is not None else None)
    if where is None:
        known = f"; the pipelines are {', '.join(SHIPPED)}" if name not in SHIPPED else ""
        raise PipelineError(
            f"{name} has never run in {home}; give the folder of its tables with --output{known}"
        )
    return (record.pipeline if record is not None else "") or name, where, record.settings if record else {}


def _write_one(
    spark: SparkSession,
    home: str,
    name: str,
    pipeline: str,
    where: str,
    given: dict[str, Any],
    path: Path | None,
) -> Path:
    folder = RunFolder(home, name)
    path = path or folder.path / "report.html"
    shipped, module = find(pipeline)
    render_report(spark, module, shipped, folder, where, path, settings_of(module, given))
    return path


def write_index(home: str, names: Sequence[str]) -> Path:
    """Write ``HOME/index.html`` with a line and a link for each pipeline's report; return its path."""
    from nilometer.pipeline.run.run_report import Entry, index_page

    entries: list[Entry] = []
    for name in names:
        folder = RunFolder(home, name)
        record = folder.read()
        tally = folder.tally(record.output) if record is not None else None
        entries.append(Entry(name, f"{name}/report.html", record, tally))
    page = Path(home) / "index.html"
    page.write_text(index_page(entries), encoding="utf-8")
    return page


def render_report(
    spark: SparkSession,
    module: PipelineModule,
    shipped: Shipped,
    folder: RunFolder,
    output: str,
    path: Path,
    settings: Any = None,
) -> None:
    from nilometer.pipeline.batches import RunFiles
    from nilometer.pipeline.run.run_report import Report, write_report
    from nilometer.pipeline.run.runner import accepted

    charts = getattr(module, "charts", None)
    given = accepted(module.results, settings=settings)
    record = folder.read()
    page = Report(
        name=folder.name,
        summary=shipped.summary,
        tables=module.results(spark, output, **given),
        charts=charts(spark, output, **accepted(charts, settings=settings)) if charts is not None else {},
        progress=folder.batches(output),
        tally=folder.tally(output),
        done=RunFiles(spark, output).last(),
        topics=record.topics if record is not None else [],
    )
    write_report(page, path)


def open_page(path: Path, *, opened: bool) -> None:
    """Open the page in a browser if ``opened``; say where it is if there is no browser."""
    if opened and not webbrowser.open(path.resolve().as_uri()):
        click.echo(f"There is no browser here; the page is {path}", err=True)
