"""Rows that a Python function makes of a frame's in Spark's workers, and a result's rows as Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, Row

ROWS = 5_000
"""The number of rows that a task gives to Spark at once."""
FIRST_TIME, LAST_TIME = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
"""The times that Python has; one in these years in UTC may lie some hours outside of them in another zone."""
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


def result_rows(frame: DataFrame) -> list[Row]:
    """Return a frame's rows, times in the session's zone.

    PySpark has them in the process's, in which it makes no value of a time in the first day of the year 1.
    """
    from pyspark.sql import functions as F

    def shown(name: str) -> Column:
        first, last = (F.lit(one).cast("timestamp_ntz") for one in (FIRST_TIME, LAST_TIME))
        return F.greatest(first, F.least(last, F.col(f"`{name}`").cast("timestamp_ntz")))

    times = {name: shown(name) for name, kind in frame.dtypes if kind == "timestamp"}
    return (frame.withColumns(times) if times else frame).collect()


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
