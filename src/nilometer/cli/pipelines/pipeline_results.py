"""Prints a pipeline's progress, its result tables and its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nilometer.pipeline.run.runner import Progress


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
    return {title: [row.asDict() for row in frame.collect()] for title, frame in results.items()}


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
