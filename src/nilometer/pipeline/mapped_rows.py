"""Rows that a Python function makes of a frame's, in Spark's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROWS = 5_000
"""The number of rows that a task gives to Spark at once."""
RowsOf = Callable[["Iterator[pa.RecordBatch]"], Iterator[dict[str, Any]]]
"""Makes rows of those of a task. A column that a row does not have is null."""


def mapped(frame: DataFrame, rows_of: RowsOf, schema: str) -> DataFrame:
    """Return the rows that ``rows_of`` makes of the rows of each partition. ``schema``: their type."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    fields = cast("StructType", StructType.fromDDL(schema)).fields
    arrow = pa.schema([pa.field(one.name, _arrow_type(one.dataType)) for one in fields])

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows = rows_of(batches)
        while part := list(islice(rows, ROWS)):
            yield pa.RecordBatch.from_pylist(part, schema=arrow)

    return frame.mapInArrow(task, schema)


def rows_in(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


def _arrow_type(kind: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql.types import ArrayType, StructType

    match kind:
        case StructType():
            return pa.struct([pa.field(one.name, _arrow_type(one.dataType)) for one in kind.fields])
        case ArrayType():
            return pa.list_(_arrow_type(kind.elementType))
        case _:
            return {
                "bigint": pa.int64(),
                "binary": pa.binary(),
                "boolean": pa.bool_(),
                "double": pa.float64(),
                "int": pa.int32(),
                "string": pa.string(),
                "timestamp": pa.timestamp("us", "UTC"),
            }[kind.simpleString()]
