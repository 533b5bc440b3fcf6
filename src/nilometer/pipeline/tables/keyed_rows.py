"""Rows of tables that have one row per key: the newest of a batch, and what they replace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa

from nilometer.pipeline.tables.arrow_types import DAY_FIELD
from nilometer.pipeline.tables.staged_files import StagedFile
from nilometer.pipeline.tables.table_store import needed
from nilometer.pipeline.tables.value_types import KEY, OFFSET, PARTITION


def newest_rows(table: Path, files: Sequence[StagedFile]) -> Any:
    """Return the newest row of each key in the batch's files, as an Arrow table with ``_deleted``.

    It has the column ``_day`` if the files are those of days.

    The records of a key are in one partition, so their offsets are in their order. If they are in several,
    because partitions were added, the highest offset counts.
    """
    rows = pa.concat_tables([_rows_of(table, file) for file in files])
    newest: dict[bytes, tuple[int, int, int]] = {}
    columns = (rows.column(name).to_pylist() for name in (KEY, OFFSET, PARTITION))
    for index, (key, offset, partition) in enumerate(zip(*columns, strict=True)):
        if key not in newest or (offset, partition) > newest[key][:2]:
            newest[key] = (offset, partition, index)
    return rows.take(pa.array(sorted(index for _, _, index in newest.values()), pa.int64()))


def _rows_of(table: Path, file: StagedFile) -> Any:
    parquet: Any = needed("pyarrow.parquet")
    rows: Any = parquet.read_table(table / file.path, partitioning=None)
    if file.day is None:
        return rows
    day = pa.scalar(date.fromisoformat(file.day), DAY_FIELD.type)
    return rows.append_column(DAY_FIELD, pa.repeat(day, rows.num_rows))


def without_keys(rows: Any, replaced: Any) -> Any:
    """Return ``rows`` without those whose key is in ``replaced``."""
    compute = needed("pyarrow.compute")
    found = compute.is_in(
        rows.column(KEY), value_set=replaced.column(KEY).combine_chunks().cast(rows.schema.field(KEY).type)
    )
    return rows.filter(compute.invert(found))
