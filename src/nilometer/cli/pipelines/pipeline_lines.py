"""What a run says about its lines: read, recognised and skipped, and why totals do not add up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from nilometer.cli.console import OutputConsole
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.formats.tally import Tally, share
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run.catalogue import PipelineModule, Shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nilometer.pipeline.run.runner import Job

FILES_SHOWN = 10
WIDTH = 140


def check_any_recognised(tally: Tally | None, shipped: Shipped, job: Job) -> None:
    """Raise PipelineError, with what was tried, if there are lines and none was recognised."""
    if tally is None or tally.recognised or not tally.unrecognised:
        return
    samples = "".join(f"\n  {line}" for line in tally.samples())
    raise PipelineError(
        f"none of the {tally.unrecognised:,} lines of {job.topic} is of a format that {shipped.name} reads. "
        f"Tried: {_tried(shipped, job.formats)}. The lines are such as:{samples}\n"
        "`nilometer pipeline formats test FILE` shows which format takes which line, and proposes formats "
        "for --formats"
    )


def _tried(shipped: Shipped, formats: Formats | None) -> str:
    if shipped.name in ("logs", "activity") or (formats is not None and formats.own):
        names = dict.fromkeys(one.name for one in (formats or Formats()).definitions())
        return ", ".join(names)
    return "JSON objects as the pipeline's file describes them"


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


def too_many_text(tally: Tally | None, most: float) -> str:
    if tally is None:
        return ""
    return (
        f"WARNING: {tally.unrecognised:,} of {tally.lines - tally.blank:,} lines "
        f"({tally.unrecognised_share:.1%}) are of no known format and were skipped; --max-unrecognised is "
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


def explanations(
    spark: SparkSession,
    module: PipelineModule,
    output: str,
    tally: Tally | None,
    last: Mapping[str, Any] | None,
    *,
    finished: bool,
) -> list[str]:
    """Return why the tables contain less than the recognised lines; nothing if they contain all.

    For pipelines that have ``accounted`` (the lines in their tables) and ``OPEN`` (what their state holds).
    """
    accounted, what = getattr(module, "accounted", None), getattr(module, "OPEN", None)
    if tally is None or last is None or accounted is None or what is None:
        return []
    return _explained(tally.recognised, accounted(spark, output), what, last, finished=finished)


def _explained(
    recognised: int, in_tables: int, what: tuple[str, str], last: Mapping[str, Any], *, finished: bool
) -> list[str]:
    """``what`` names the lines and the rows of the state, such as requests and sessions."""
    missing = recognised - in_tables
    lines, rows = what
    notes: list[str] = []
    if finished and last["open"]:
        notes.append(
            f"--finish has written the {last['open']:,} open {rows} too. They stay open for later input, and "
            "are written again when they end"
        )
    elif missing > 0 and last["open"]:
        notes.append(
            f"{missing:,} of {recognised:,} {lines} are in none of the tables: {last['open']:,} {rows} are "
            f"still open, until the event-time watermark ({last['event_time_watermark']}) has passed their "
            "end. --finish closes them"
        )
    elif missing > 0:
        notes.append(f"{missing:,} of {recognised:,} {lines} are in none of the tables")
    if last["late"]:
        notes.append(f"In the last batch {last['late']:,} rows came after the watermark, and were left out")
    return notes
