"""The CSV table that a pipeline joins with: columns by their names, and one row per key.

Two rows of one key would double what is joined with them, so that such a table is refused, with its lines;
one on this machine before Spark starts.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nilometer.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_table(table: str, columns: str) -> None:
    """Check a file on this machine. Raises PipelineError.

    ``columns`` are separated by commas, the key first.
    """
    path = Path(table)
    if "://" in table or path.is_dir():
        return
    if not path.exists():
        raise PipelineError(f"--table: the file {table} does not exist")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            names = next(rows, None) or [""]
            _check_names(table, names, columns)
            key = names.index(columns.split(",")[0])
            seen: dict[str, int] = {}
            for row in rows:
                if len(row) > key and seen.setdefault(row[key], rows.line_num) != rows.line_num:
                    lines = f"in lines {seen[row[key]]} and {rows.line_num}"
                    raise PipelineError(f"--table {table}: {names[key]} {row[key]} is there twice, {lines}")
    except (UnicodeDecodeError, csv.Error) as error:
        raise PipelineError(f"--table {table}: it is no CSV file in UTF-8: {error}") from None


def read_table(spark: SparkSession, table: str, columns: str) -> DataFrame:
    """Return the table with these columns, all of them texts. Raises PipelineError."""
    # As RFC 4180 has it, and Python's own reader: a quote within quotes is doubled, and lines may end there.
    frame = spark.read.csv(table, header=True, quote='"', escape='"', multiLine=True)
    # Of a file with a byte order mark, which is a part of the first name for Spark.
    frame = frame.withColumnsRenamed({name: name.removeprefix("\ufeff") for name in frame.columns})
    _check_names(table, frame.columns, columns)
    names = columns.split(",")
    twice = frame.where(f"`{names[0]}` is not null").groupBy(names[0]).count().where("count > 1").first()
    if twice is not None:
        raise PipelineError(f"--table {table}: {names[0]} {twice[0]} is there {twice[1]} times")
    return frame.select(*names)


def _check_names(table: str, found: Sequence[str], columns: str) -> None:
    missing = [one for one in columns.split(",") if one not in found]
    if missing:
        raise PipelineError(
            f"--table {table}: there is no column {', '.join(missing)}. The first line has the names of the "
            f"columns, here {', '.join(found)}; needed are {columns}, in any order"
        )
