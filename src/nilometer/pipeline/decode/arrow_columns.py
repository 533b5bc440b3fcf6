"""The columns of the data sources: their Arrow types, and the Arrow arrays made from filled buffers.

The kernels (``decode_kernels``) fill the buffers. This module never touches batches, files or Spark.

Invariant: only the wanted columns are made and copied; they have the types that Spark takes without
conversion, and all are nullable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import pyarrow

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Spark's Kafka source."""
HEADERS_COLUMN = "headers"
LOG_COLUMNS = ("leader_epoch", "producer_id", "batch_attributes")
"""Additional columns of ``nilometer-log``, from the header of the record's batch."""

ROWS_PER_ARROW_BATCH = 65_536
"""The maximum number of rows of an Arrow batch; Spark transfers 50,000 to 100,000 rows fastest."""

_LOG_APPEND_TIME_BIT = 3

BytesColumn = tuple["numpy.ndarray[Any, Any]", "numpy.ndarray[Any, Any]", "numpy.ndarray[Any, Any]"]


def kafka_columns(with_headers: bool) -> tuple[str, ...]:
    return (*KAFKA_COLUMNS, HEADERS_COLUMN) if with_headers else KAFKA_COLUMNS


def arrow_schema(with_headers: bool = False, columns: Sequence[str] | None = None) -> pyarrow.Schema:
    """Return the Arrow schema of ``columns``, in that order; by default those of Spark's Kafka source."""
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": _headers_type(),
        "leader_epoch": pa.int32(),
        "producer_id": pa.int64(),
        "batch_attributes": pa.int32(),
    }
    return pa.schema([pa.field(name, types[name]) for name in columns or kafka_columns(with_headers)])


def _headers_type() -> pyarrow.DataType:
    import pyarrow as pa

    return pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    )


class ColumnRoom:
    """Buffers for the wanted columns, which the kernels fill and :meth:`record_batch` makes into arrays.

    ``sizes`` is the array that ``measure`` filled: the numbers of rows, bytes and nulls.
    """

    def __init__(self, columns: Sequence[str], kernels: Any, sizes: Any) -> None:
        import numpy as np

        self._np = np
        self._columns = columns
        self._rows = rows = int(sizes[kernels.ROWS])
        self._null_keys, self._null_values = int(sizes[kernels.NULL_KEYS]), int(sizes[kernels.NULL_VALUES])
        self.offsets = np.empty(rows, np.int64)
        self.timestamps = np.empty(rows, np.int64)
        self.keys = self._bytes("key", rows, sizes[kernels.KEY_BYTES])
        self.values = self._bytes("value", rows, sizes[kernels.VALUE_BYTES])
        self.headers = _HeaderColumns(np, kernels, rows if HEADERS_COLUMN in columns else 0, sizes)

    def _bytes(self, name: str, rows: int, size: Any) -> BytesColumn:
        wanted = name in self._columns
        return _bytes_column(self._np, rows if wanted else 0, int(size) if wanted else 0)

    def record_batch(self, constants: ConstantColumns, per_section: SectionColumns) -> pyarrow.RecordBatch:
        import pyarrow as pa

        arrays = [self._column(name, constants, per_section) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns=self._columns))

    def _column(self, name: str, constants: ConstantColumns, per_section: SectionColumns) -> pyarrow.Array:
        import pyarrow as pa

        rows = self._rows
        match name:
            case "key":
                return _binary(rows, self.keys, self._null_keys)
            case "value":
                return _binary(rows, self.values, self._null_values)
            case "topic" | "partition":
                return constants.column(name, rows)
            case "offset":
                return pa.array(self.offsets)
            case "timestamp":
                buffers = [None, pa.py_buffer(self.timestamps)]
                return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, buffers)
            case "headers":
                return self.headers.column(rows)
            case _:
                return pa.array(per_section.column(name))


class ConstantColumns:
    """The columns topic and partition, equal in every row: built once, and sliced for each Arrow batch."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._built: dict[str, pyarrow.Array] = {}

    def column(self, name: str, rows: int) -> pyarrow.Array:
        built = self._built.get(name)
        if built is None or len(built) < rows:
            import pyarrow as pa

            scalar = (
                pa.scalar(self._topic, pa.string())
                if name == "topic"
                else pa.scalar(self._partition, pa.int32())
            )
            built = self._built[name] = pa.repeat(scalar, max(rows, 2 * ROWS_PER_ARROW_BATCH))
        return built.slice(0, rows)


class SectionColumns:
    """The columns whose value is that of the record's batch: repeated for each of the batch's rows."""

    def __init__(self, kernels: Any, sections: Any, rows_of_sections: Any) -> None:
        self._kernels = kernels
        self._sections = sections
        self._rows_of_sections = rows_of_sections

    def column(self, name: str) -> Any:
        import numpy as np

        kernels, sections = self._kernels, self._sections
        match name:
            case "timestampType":
                values = (sections[:, kernels.ATTRIBUTES] >> _LOG_APPEND_TIME_BIT & 1).astype(np.int32)
            case "leader_epoch":
                values = sections[:, kernels.LEADER_EPOCH].astype(np.int32)
            case "producer_id":
                values = sections[:, kernels.PRODUCER_ID].astype(np.int64)
            case "batch_attributes":
                values = sections[:, kernels.ATTRIBUTES].astype(np.int32)
            case _:
                raise ValueError(f"there is no column {name}")
        return np.repeat(values, self._rows_of_sections)


def _bytes_column(np: Any, rows: int, size: int) -> BytesColumn:
    """Return buffers for offsets, data and validity bits of a binary column."""
    offsets = np.empty(rows + 1, np.int32)
    offsets[0] = 0
    return offsets, np.empty(size, np.uint8), np.zeros((rows + 7) // 8, np.uint8)


def _binary(rows: int, arrays: tuple[Any, Any, Any], nulls: int) -> pyarrow.Array:
    """Return a binary column from its buffers for offsets, data and validity bits.

    The validity bits are not used if there are no ``nulls``.
    """
    import pyarrow as pa

    offsets, data, valid = arrays
    return pa.Array.from_buffers(
        pa.binary(),
        rows,
        [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)],
        null_count=nulls,
    )


class _HeaderColumns:
    """Buffers for the headers column, which the kernels fill and :meth:`column` makes into an array.

    If the column is not wanted, ``rows`` is 0 and :meth:`column` is never called.
    """

    def __init__(self, np: Any, kernels: Any, rows: int, sizes: Any) -> None:
        self._count = int(sizes[kernels.HEADERS])
        self._null_values = int(sizes[kernels.NULL_HEADER_VALUES])
        keys = _bytes_column(np, self._count, sizes[kernels.HEADER_KEY_BYTES])
        values = _bytes_column(np, self._count, sizes[kernels.HEADER_VALUE_BYTES])
        list_offsets = np.empty(rows + 1, np.int32)
        list_offsets[0] = 0
        self.lists = (list_offsets, np.zeros((rows + 7) // 8, np.uint8))
        self.arrays = (keys[0], keys[1], *values)

    def column(self, rows: int) -> pyarrow.Array:
        import pyarrow as pa

        key_offsets, key_data, value_offsets, value_data, value_valid = self.arrays
        values = (value_offsets, value_data, value_valid)
        keys = _binary(self._count, (key_offsets, key_data, None), 0)
        structs = pa.StructArray.from_arrays(
            [_as_text(keys), _binary(self._count, values, self._null_values)],
            fields=[pa.field("key", pa.string()), pa.field("value", pa.binary())],
        )
        offsets, valid = self.lists
        return pa.Array.from_buffers(
            _headers_type(), rows, [pa.py_buffer(valid), pa.py_buffer(offsets)], children=[structs]
        )


def _as_text(keys: pyarrow.Array) -> pyarrow.Array:
    """Return header keys as strings; invalid UTF-8 is replaced, as the Java clients do."""
    import pyarrow as pa

    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
