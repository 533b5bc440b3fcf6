"""Compares the pipeline's numbers with an independent count of the same files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.table import Table

from nilometer.cli.demo.census import FORMATS, Census, take_census
from nilometer.cli.demo.demo_run import Demo, DemoFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def counting(files: Sequence[Path]) -> Callable[[], Census]:
    """Start counting the files in a thread; return a function that waits for the result and returns it."""
    result: list[Census] = []
    thread = threading.Thread(target=lambda: result.append(take_census(files)), daemon=True)
    thread.start()

    def wait() -> Census:
        thread.join()
        if not result:
            raise DemoFailed("the files could not be counted in plain Python")
        return result[0]

    return wait


def numbers_of(session: SparkSession, tables: Path) -> Census:
    """Return the pipeline's numbers of lines, read from the Parquet tables in folder ``tables``.

    ``lines`` of the result is the number of rows of the table ``lines``; ``by_format`` and ``by_label`` are
    the numbers of lines in the table ``counts``, added up over all batches. Lines of formats that the plain
    count does not know are ``unparsed``, as they are there.
    """
    census = Census(lines=session.read.parquet(f"{tables}/lines").count())
    rows = (
        session.read.parquet(f"{tables}/counts").where("by = 'label'").groupBy("format", "label").sum("lines")
    )
    counts = cast("list[tuple[str, str, int]]", rows.collect())
    for format_name, label, lines in counts:
        if format_name not in FORMATS:
            format_name, label = "unparsed", ""
        census.by_format[format_name] += lines
        census.by_label[format_name, label] += lines
    return census


def compare(demo: Demo, found: Census, wanted: Census) -> bool:
    """Print both counts as a table; return whether all numbers are equal."""
    table = Table(title="Pipeline beside an independent count of the input", title_justify="left")
    for column in ("what", "pipeline", "plain count", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    agreed = True

    def row(what: str, ours: int, theirs: int) -> None:
        nonlocal agreed
        agreed = agreed and ours == theirs
        table.add_row(what, f"{ours:,}", f"{theirs:,}", "equal" if ours == theirs else "[red]DIFFERENT[/red]")

    row("lines in all", found.lines, wanted.lines)
    row("lines counted", sum(found.by_format.values()), wanted.lines)
    for name in sorted(found.by_format.keys() | wanted.by_format.keys()):
        what = "no format, or one that only the pipeline knows" if name == "unparsed" else f"format {name}"
        row(what, found.by_format[name], wanted.by_format[name])
    for key in sorted(found.by_label.keys() | wanted.by_label.keys()):
        row(f"{key[0]} {key[1] or '(none)'}", found.by_label[key], wanted.by_label[key])
    demo.console.print(table)
    if agreed:
        demo.print_step(
            f"[green]Verified:[/green] {found.lines:,} lines, every count equal to that of the input files: "
            "nothing was lost or repeated through the death of a leader"
        )
    else:
        demo.print_step(
            "[red]NOT verified:[/red] the pipeline's numbers differ from those of the input files"
        )
    return agreed
