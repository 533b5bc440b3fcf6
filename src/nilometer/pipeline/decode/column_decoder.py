"""Decodes record batches into Arrow columns, without an object per record and with little Python per batch.

Takes the batches of a Fetch response or of a piece of a segment, checks and decompresses them, and writes
their records into Arrow's buffers. Never touches sockets, files or Spark; the loops over headers and records
are machine code (``batch_kernels``, ``decode_kernels``), imported with the first batch.

Invariants: all bytes are checked (CRC, lengths, counts, every varint) before any is copied; a corrupt batch
raises CorruptBatch with its offset. A decoder returns each record that was added once, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nilometer.pipeline.decode.batch_table import CODEC_MASK, CONTROL, BatchTable, walk
from nilometer.wire.compression import Codec, decompress
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, read_header

if TYPE_CHECKING:
    import numpy
    import pyarrow


__all__ = [
    "BYTES_PER_ARROW_BATCH",
    "ROWS_PER_ARROW_BATCH",
    "BatchPredicate",
    "ColumnDecoder",
    "RowFilter",
    "arrow_schema",
]


# The columns of the data sources: their Arrow types, and the Arrow arrays made from filled buffers.
#
# The kernels (``decode_kernels``) fill the buffers. This module never touches batches, files or Spark.
#
# Invariant: only the wanted columns are made and copied; they have the types that Spark takes without
# conversion, and all are nullable.

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
                return _numbers(self.offsets, pa.int64())
            case "timestamp":
                return _numbers(self.timestamps, pa.timestamp("us", tz="UTC"))
            case "headers":
                return self.headers.column(rows)
            case _:
                kind = pa.int64() if name == "producer_id" else pa.int32()
                return _numbers(per_section.column(name), kind)


class ConstantColumns:
    """The columns topic and partition, equal in every row: built once, and sliced for each Arrow batch."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._built: dict[str, pyarrow.Array] = {}

    def column(self, name: str, rows: int) -> pyarrow.Array:
        built = self._built.get(name)
        if built is None or len(built) < rows:
            built = self._built[name] = self._build(name, max(rows, 2 * ROWS_PER_ARROW_BATCH))
        return built.slice(0, rows)

    def _build(self, name: str, rows: int) -> pyarrow.Array:
        import numpy as np
        import pyarrow as pa

        if name == "partition":
            return _numbers(np.full(rows, self._partition, np.int32), pa.int32())
        topic = self._topic.encode()
        offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(topic))
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(topic * rows)]
        return pa.Array.from_buffers(pa.string(), rows, buffers)


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


def _numbers(values: Any, kind: pyarrow.DataType) -> pyarrow.Array:
    """Return a column of numbers from its buffer.

    ``pa.array`` and ``pa.scalar`` import pandas, which takes as long as the rest of a first batch.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


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


BYTES_PER_ARROW_BATCH = 32 * 1024 * 1024
"""Decompressed bytes at which an Arrow batch is full.

With one more record batch, of at most 128 MB decompressed, it stays below the 2 GB of Arrow's offsets.
"""

RowFilter = Callable[["BatchTable"], "numpy.ndarray[Any, Any]"]
"""Returns, for each batch of a table, whether its records are wanted."""
BatchPredicate = Callable[[bytes | memoryview, int, BatchHeader], bool]
"""Returns whether one batch's records are wanted; called for each batch, control batches too, in order."""


class _Measured(NamedTuple):
    """Decompressed batches (*sections*) of one buffer, checked and measured by ``decode_kernels``."""

    data: numpy.ndarray[Any, Any]
    sections: numpy.ndarray[Any, Any]


class ColumnDecoder:
    """Collects the records of one partition with offsets in [start, end) and returns them as Arrow batches.

    ``add`` takes the record sets of Fetch responses or pieces of segments and yields full Arrow batches;
    ``take`` yields the rest.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        with_headers: bool = False,
        columns: Sequence[str] | None = None,
        rows_max: int = ROWS_PER_ARROW_BATCH,
        bytes_max: int = BYTES_PER_ARROW_BATCH,
    ) -> None:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels, decode_kernels

        self._np = np
        self._fields = batch_kernels
        self._kernels = decode_kernels
        self._constants = ConstantColumns(topic, partition)
        self._columns = tuple(columns or kafka_columns(with_headers))
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._end = end
        self._next_offset = start
        self._measured: list[_Measured] = []
        self._sizes = np.zeros(decode_kernels.SIZES, np.int64)
        self._bytes = 0

    @property
    def next_offset(self) -> int:
        """The offset to fetch next: after the last batch added."""
        return self._next_offset

    @property
    def rows(self) -> int:
        """The number of records added and not returned yet."""
        return int(self._sizes[self._kernels.ROWS])

    def skip_to(self, offset: int) -> None:
        """Leave out records before ``offset``, also in a batch that contains it."""
        self._next_offset = max(self._next_offset, offset)

    def add(
        self, record_set: bytes | memoryview, wanted: BatchPredicate | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """Add the batches of ``record_set``; yield Arrow batches when they are full.

        ``wanted`` selects batches. Raises CorruptBatch.
        """
        position = 0
        row_filter = _row_filter_of(wanted) if wanted is not None else None
        while True:
            table = walk(record_set, position)
            yield from self.add_table(table, row_filter)
            if not table.is_header and self._next_offset < self._end:
                read_header(record_set, table.end)  # raises CorruptBatch: these bytes are no batch header
            if not len(table) or not table.is_header or self._next_offset >= self._end:
                return
            position = table.end

    def add_table(self, table: BatchTable, wanted: RowFilter | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Check and add the batches of ``table`` in the range; yield Arrow batches when they are full.

        Raises CorruptBatch.
        """
        rows = self._in_range(table)
        if not len(rows):
            return
        inside = BatchTable(table.buffer, rows, table.end, table.is_header)
        self._check(inside)
        fields = self._fields
        kept = (rows[:, fields.ATTRIBUTES] & CONTROL == 0) & (rows[:, fields.RECORDS_COUNT] > 0)
        if wanted is not None:
            kept &= wanted(inside)
        yield from self._measure_all(table.buffer, rows[kept])
        last = rows[-1]
        self._next_offset = int(last[fields.BASE_OFFSET] + last[fields.LAST_OFFSET_DELTA] + 1)

    def take(self) -> Iterator[pyarrow.RecordBatch]:
        """Yield the added records as Arrow batches of at most ``rows_max`` rows and about equal size."""
        if self.rows:
            whole = self._lay_out()
            pieces = -(-whole.num_rows // self._rows_max)
            step = -(-whole.num_rows // pieces)
            for start in range(0, whole.num_rows, step):
                yield whole.slice(start, step)
        self._measured = []
        self._sizes[:] = 0
        self._bytes = 0

    def _in_range(self, table: BatchTable) -> Any:
        rows = table.rows
        bases = rows[:, self._fields.BASE_OFFSET]
        return rows[(table.next_offsets > self._next_offset) & (bases < self._end)]

    def _check(self, table: BatchTable) -> None:
        table.check()
        bases, following = table.column(self._fields.BASE_OFFSET), table.next_offsets
        back = bases[1:] < following[:-1]
        if back.any():
            at = int(back.argmax())
            raise CorruptBatch(
                f"batch at offset {bases[at + 1]}: the previous batch ends at {following[at]}, after it"
            )

    def _measure_all(self, buffer: bytes | memoryview, rows: Any) -> Iterator[pyarrow.RecordBatch]:
        """Measure the batches in groups that fit into one Arrow batch; yield Arrow batches when full."""
        start = 0
        while start < len(rows):
            if self._is_full:
                yield from self.take()
            start += self._measure_group(buffer, rows[start:])
        if self._is_full:
            yield from self.take()

    @property
    def _is_full(self) -> bool:
        return self.rows >= self._rows_max or self._bytes >= self._bytes_max

    def _measure_group(self, buffer: bytes | memoryview, rows: Any) -> int:
        """Measure as many batches as fit into the Arrow batch, at least one; return their number."""
        fields, room = self._fields, self._bytes_max - self._bytes
        codecs = rows[:, fields.ATTRIBUTES] & CODEC_MASK
        compressed = codecs.nonzero()[0]
        if len(compressed) == 0 or compressed[0] > 0:
            rows = rows[: int(compressed[0])] if len(compressed) else rows
            ends = (rows[:, fields.SIZE] - HEADER_BYTES).cumsum()
            rows = rows[: int(self._np.searchsorted(ends, room)) + 1]
            starts = rows[:, fields.POSITION] + HEADER_BYTES
            data = self._np.frombuffer(buffer, self._np.uint8)
            self._measure(data, rows, starts, rows[:, fields.POSITION] + rows[:, fields.SIZE])
        else:
            parts = list(self._decompressed(buffer, rows, codecs, room))
            rows = rows[: len(parts)]
            ends = self._np.cumsum([len(part) for part in parts])
            data = self._np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), self._np.uint8)
            self._measure(data, rows, ends - self._np.diff(ends, prepend=0), ends)
        return len(rows)

    def _decompressed(
        self, buffer: bytes | memoryview, rows: Any, codecs: Any, room: int
    ) -> Iterator[bytes | memoryview]:
        fields = self._fields
        spans = zip(
            codecs.tolist(),
            rows[:, fields.POSITION].tolist(),
            rows[:, fields.SIZE].tolist(),
            rows[:, fields.BASE_OFFSET].tolist(),
            strict=True,
        )
        with memoryview(buffer) as view:
            for codec, position, size, base_offset in spans:
                try:
                    part = decompress(Codec(codec), view[position + HEADER_BYTES : position + size])
                except CorruptBatch as error:
                    raise CorruptBatch(f"batch at offset {base_offset}: {error.message}") from error
                yield part
                room -= len(part)
                if room <= 0:
                    return

    def _measure(self, data: Any, rows: Any, starts: Any, ends: Any) -> None:
        np, fields, kernels = self._np, self._fields, self._kernels
        sections = np.empty((len(rows), kernels.SECTION_FIELDS), np.int64)
        bases, deltas = rows[:, fields.BASE_OFFSET], rows[:, fields.LAST_OFFSET_DELTA]
        sections[:, kernels.START] = starts
        sections[:, kernels.END] = ends
        sections[:, kernels.RECORDS_COUNT] = rows[:, fields.RECORDS_COUNT]
        sections[:, kernels.LAST_OFFSET_DELTA] = deltas
        sections[:, kernels.FIRST_DELTA] = np.maximum(self._next_offset - bases, 0)
        sections[:, kernels.UNTIL_DELTA] = np.minimum(self._end - bases, deltas + 1)
        sections[:, kernels.BASE_OFFSET] = bases
        sections[:, kernels.BASE_TIMESTAMP] = rows[:, fields.BASE_TIMESTAMP]
        sections[:, kernels.MAX_TIMESTAMP] = rows[:, fields.MAX_TIMESTAMP]
        sections[:, kernels.ATTRIBUTES] = rows[:, fields.ATTRIBUTES]
        sections[:, kernels.LEADER_EPOCH] = rows[:, fields.LEADER_EPOCH]
        sections[:, kernels.PRODUCER_ID] = rows[:, fields.PRODUCER_ID]
        error, number = kernels.measure(data, sections, HEADERS_COLUMN in self._columns, self._sizes)
        if error != kernels.OK:
            raise CorruptBatch(f"batch at offset {bases[number]}: {kernels.ERROR_TEXTS[error]}")
        self._measured.append(_Measured(data, sections))
        self._bytes += int((ends - starts).sum())

    def _lay_out(self) -> pyarrow.RecordBatch:
        kernels, np, columns = self._kernels, self._np, self._columns
        room = ColumnRoom(columns, kernels, self._sizes)
        at = np.zeros(kernels.SIZES, np.int64)
        rows_of_sections = [np.zeros(len(one.sections), np.int64) for one in self._measured]
        for (data, sections), rows in zip(self._measured, rows_of_sections, strict=True):
            kernels.fill(
                data,
                sections,
                "key" in columns,
                "value" in columns,
                HEADERS_COLUMN in columns,
                at,
                room.offsets,
                room.timestamps,
                rows,
                room.keys,
                room.values,
                room.headers.lists,
                room.headers.arrays,
            )
        sections = np.concatenate([one.sections for one in self._measured])
        return room.record_batch(
            self._constants, SectionColumns(kernels, sections, np.concatenate(rows_of_sections))
        )


def _row_filter_of(wanted: BatchPredicate) -> RowFilter:
    def row_filter(table: BatchTable) -> Any:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        positions = table.column(fields.POSITION).tolist()
        answers = [wanted(table.buffer, at, read_header(table.buffer, at)) for at in positions]
        return np.array(answers, np.bool_)

    return row_filter


def warm_up() -> None:
    """Decode a record of each kind, so that all machine code exists from now on, also on the disk."""
    from nilometer.wire.records import BatchBuilder

    for codec in (Codec.NONE, Codec.GZIP):
        batch = BatchBuilder(codec)
        batch.append(0, b"key", b"value", (("name", b"value"),))
        data = batch.build()
        for with_headers in (False, True):
            for records in (bytes(data), memoryview(data)):
                decoder = ColumnDecoder("t", 0, 0, 1, with_headers=with_headers)
                list(decoder.add(records, None))
                list(decoder.take())
