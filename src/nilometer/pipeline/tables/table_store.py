"""What the kinds of tables share: what each must do for ``table_writer`` (:class:`TableStore`), a table's
columns as an Arrow schema, and the rows of tables that have one row per key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.schemas import Change
from nilometer.pipeline.tables.staged_files import StagedFile
from nilometer.pipeline.tables.values import (
    DAY,
    KEY,
    OFFSET,
    PARTITION,
    RESERVED,
    TIMESTAMP,
    Field,
    SchemaError,
    ValueType,
    struct,
)

APPLICATION, BATCH, ROWS = "nilometer.application", "nilometer.batch", "nilometer.rows"
"""The properties of a table, and of its commits, that tell what has been written to it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one micro-batch, complete in staged files."""

    application: str
    """The id of the query's checkpoint: batch ids count only within it."""
    batch_id: int
    files: tuple[StagedFile, ...]
    change: Change
    """How the table's columns change with this batch."""

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a table, from its own history."""

    batch_id: int
    rows: int
    """The rows that the batch had: with upsert, the table grows by fewer."""
    at: datetime


@dataclass(frozen=True, slots=True)
class Totals:
    rows: int
    files: int
    size: int
    """In bytes."""
    version: str


class TableStore(Protocol):
    """One table in a folder. Batches are committed by one process at a time."""

    def folder_of(self, batch_id: int) -> str:
        """Return the folder for a batch's staged files, relative to the table's."""
        ...

    def exists(self) -> bool: ...

    def columns(self) -> ValueType:
        """Return the columns of the table, which exists."""
        ...

    def application(self) -> str | None:
        """Return the application that created the table; None if another program did."""
        ...

    def create(self, application: str, columns: ValueType) -> None: ...

    def last_batch(self, application: str) -> int | None:
        """Return the last batch that is committed; None if there is none."""
        ...

    def commit(self, batch: Batch) -> None:
        """Commit rows, columns and batch id at once. All or nothing, also if the process is killed."""
        ...

    def compact(self) -> None:
        """Replace small files by larger ones. Raises PipelineError if the kind of table cannot."""
        ...

    def commits(self) -> Sequence[Commit]: ...

    def totals(self) -> Totals: ...


def needed(module: str) -> Any:
    """Import a module of the extra ``tables``. Raises PipelineError if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise PipelineError(
            f"{module.partition('.')[0]} is not installed: pip install 'nilometer[tables]' ({error})"
        ) from None


def file_names(files: Sequence[StagedFile]) -> set[str]:
    return {Path(file.path).name for file in files}


# A table's columns as an Arrow schema, and back.

_MICROSECONDS: Final = pa.timestamp("us", "UTC")
_SCALARS: Final = {
    "boolean": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": _MICROSECONDS,
}
_NAMES: Final = {
    "bool": "boolean",
    "int32": "int32",
    "int64": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
    "timestamp[us, tz=UTC]": "timestamp",
}
RECORD_FIELDS: Final = (
    pa.field(KEY, pa.binary()),
    pa.field(PARTITION, pa.int32()),
    pa.field(OFFSET, pa.int64()),
    pa.field(TIMESTAMP, _MICROSECONDS),
)
"""The columns of each record, after those of its value."""
DAY_FIELD: Final = pa.field(DAY, pa.date32())


def arrow_schema(row: ValueType, *, with_day: bool = False) -> pa.Schema:
    """Return the columns of a table: those of the values, then those of the records."""
    more = (DAY_FIELD,) if with_day else ()
    return pa.schema([*(_field(one) for one in row.fields), *RECORD_FIELDS, *more])


def _field(field: Field) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.type))


def _arrow_type(one: ValueType) -> pa.DataType:
    if one.kind == "list" and one.item is not None:
        return pa.list_(pa.field("element", _arrow_type(one.item)))
    if one.kind == "struct":
        return pa.struct([_field(field) for field in one.fields])
    return _SCALARS[one.kind]


def row_type(schema: pa.Schema) -> ValueType:
    """Return the type of the rows of a table that this package wrote. Raises SchemaError."""
    return struct(
        *(Field(field.name, _value_type(field.type)) for field in schema if field.name not in RESERVED)
    )


def _value_type(arrow: Any) -> ValueType:
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return ValueType("list", item=_value_type(arrow.value_type))
    if pa.types.is_struct(arrow):
        fields = [arrow.field(number) for number in range(arrow.num_fields)]
        return struct(*(Field(field.name, _value_type(field.type)) for field in fields))
    kind = _NAMES.get(str(arrow))
    if kind is None:
        raise SchemaError(f"the table has a column of type {arrow}, which no schema describes")
    return ValueType(kind)  # pyright: ignore[reportArgumentType]: the dictionary has only kinds


# Rows of tables that have one row per key: the newest of a batch, and what they replace.


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
