"""Record batches into Arrow columns: no object per record.

Knows how to walk the batches of a fetch response or a segment, check and decompress them, and lay their
records out in Arrow's buffers. Never touches sockets, files or Spark; the loops over records live in
``decode_kernels`` as machine code, imported with the first batch.

Invariants: bytes from a broker are checked (CRC, lengths, counts, every varint) before any is laid out;
damage ends in a CorruptBatch that names the offset. A decoder hands out what it was given, in order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader, batches, check_batch
from nilometer.wire.records import records_data

if TYPE_CHECKING:
    import numpy
    import pyarrow

ROWS_PER_ARROW_BATCH = 65_536
"""What Spark's transport takes fastest lies between 50,000 and 100,000 rows."""
BYTES_PER_ARROW_BATCH = 32 * 1024 * 1024
"""With one more batch, which decompresses to 128 MB at most, this stays below the 2 GB of Arrow's offsets."""

BatchPredicate = Callable[[bytes | memoryview, int, BatchHeader], bool]


class _Section(NamedTuple):
    """The records of one batch that has been measured."""

    data: numpy.ndarray[Any, Any]
    header: BatchHeader
    first_delta: int
    until_delta: int


class ColumnDecoder:
    """Collects the records of one partition in [start, end) and hands them out as Arrow batches.

    ``add`` takes the record sets of fetch responses; ``take`` gives the Arrow batches that are full, and
    with ``all_of_it`` the rest too.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        with_headers: bool = False,
        rows_max: int = ROWS_PER_ARROW_BATCH,
        bytes_max: int = BYTES_PER_ARROW_BATCH,
        wanted: BatchPredicate | None = None,
    ) -> None:
        import numpy as np

        from nilometer.pipeline import decode_kernels

        self._np = np
        self._kernels = decode_kernels
        self._columns = _ConstantColumns(topic, partition)
        self._with_headers = with_headers
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._wanted = wanted
        self._end = end
        self._next_offset = start
        self._sections: list[_Section] = []
        self._sizes = np.zeros(decode_kernels.SIZES, np.int64)
        self._bytes = 0

    @property
    def next_offset(self) -> int:
        """Where to fetch next: behind the last batch seen, whatever gaps or control records it held."""
        return self._next_offset

    @property
    def rows(self) -> int:
        """Records added and not yet handed out."""
        return int(self._sizes[self._kernels.ROWS])

    def skip_to(self, offset: int) -> None:
        """Leave out records before ``offset``, also those in a batch that goes on behind it."""
        self._next_offset = max(self._next_offset, offset)

    def add(self, record_set: bytes | memoryview) -> Iterator[pyarrow.RecordBatch]:
        """Measure the batches of ``record_set`` up to the end; full Arrow batches come out as they fill."""
        for position, header in batches(record_set):
            if header.base_offset >= self._end:
                return
            if header.next_offset <= self._next_offset:
                continue
            try:
                check_batch(record_set, position, header)
                self._add_batch(record_set, position, header)
            except CorruptBatch as problem:
                raise CorruptBatch(f"batch at offset {header.base_offset}: {problem.message}") from problem
            self._next_offset = header.next_offset
            if self.rows >= self._rows_max or self._bytes >= self._bytes_max:
                yield from self.take()

    def take(self) -> Iterator[pyarrow.RecordBatch]:
        """What has been added, in Arrow batches of at most ``rows_max`` rows."""
        if self.rows:
            whole = self._lay_out()
            for start in range(0, whole.num_rows, self._rows_max):
                yield whole.slice(start, self._rows_max)
        self._sections = []
        self._sizes[:] = 0
        self._bytes = 0

    def _add_batch(self, record_set: bytes | memoryview, position: int, header: BatchHeader) -> None:
        if header.is_control or not header.records_count:
            return
        if self._wanted is not None and not self._wanted(record_set, position, header):
            return
        records = records_data(record_set, position, header)
        data = self._np.frombuffer(records, self._np.uint8)
        section = _Section(
            data,
            header,
            max(self._next_offset - header.base_offset, 0),
            min(self._end - header.base_offset, header.last_offset_delta + 1),
        )
        problem = self._kernels.measure(
            data,
            header.records_count,
            header.last_offset_delta,
            section.first_delta,
            section.until_delta,
            self._with_headers,
            self._sizes,
        )
        if problem != self._kernels.OK:
            raise CorruptBatch(self._kernels.PROBLEMS[problem])
        self._sections.append(section)
        self._bytes += len(records)

    def _lay_out(self) -> pyarrow.RecordBatch:
        import pyarrow as pa

        kernels, np, sizes = self._kernels, self._np, self._sizes
        rows = self.rows
        offsets, timestamps = np.empty(rows, np.int64), np.empty(rows, np.int64)
        types = np.empty(rows, np.int32)
        keys = _bytes_column(np, rows, int(sizes[kernels.KEY_BYTES]))
        values = _bytes_column(np, rows, int(sizes[kernels.VALUE_BYTES]))
        headers = _HeaderColumns(np, kernels, rows if self._with_headers else 0, sizes)
        at = np.zeros(kernels.SIZES, np.int64)
        for section in self._sections:
            header = section.header
            kernels.fill(
                section.data,
                header.records_count,
                header.base_offset,
                section.first_delta,
                section.until_delta,
                header.base_timestamp,
                header.max_timestamp,
                header.is_log_append_time,
                self._with_headers,
                at,
                offsets,
                timestamps,
                types,
                keys,
                values,
                headers.lists,
                headers.arrays,
            )
        columns = [
            _binary(pa, rows, keys, int(sizes[kernels.NULL_KEYS])),
            _binary(pa, rows, values, int(sizes[kernels.NULL_VALUES])),
            *self._columns.topic_and_partition(rows),
            pa.array(offsets),
            pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), rows, [None, pa.py_buffer(timestamps)]),
            pa.array(types),
        ]
        if self._with_headers:
            columns.append(headers.column(pa, rows))
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self._with_headers))


def arrow_schema(with_headers: bool) -> pyarrow.Schema:
    """The columns of Spark's Kafka source, as Arrow types that Spark takes without conversion."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if with_headers:
        fields.append(pa.field("headers", _headers_type(pa)))
    return pa.schema(fields)


def _headers_type(pa: Any) -> Any:
    return pa.list_(
        pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    )


class _ConstantColumns:
    """Topic and partition number of every row: built once, cut to length for each Arrow batch."""

    def __init__(self, topic: str, partition: int) -> None:
        self._values = (topic, partition)
        self._rows = 0
        self._built: tuple[Any, Any] | None = None

    def topic_and_partition(self, rows: int) -> tuple[Any, Any]:
        if self._built is None or rows > self._rows:
            import pyarrow as pa

            self._rows = max(rows, ROWS_PER_ARROW_BATCH)
            topic, partition = self._values
            self._built = (
                pa.repeat(pa.scalar(topic, pa.string()), self._rows),
                pa.repeat(pa.scalar(partition, pa.int32()), self._rows),
            )
        return self._built[0].slice(0, rows), self._built[1].slice(0, rows)


def _bytes_column(np: Any, rows: int, size: int) -> tuple[Any, Any, Any]:
    """Room for offsets, data and validity of a binary column."""
    offsets = np.empty(rows + 1, np.int32)
    offsets[0] = 0
    return offsets, np.empty(size, np.uint8), np.zeros((rows + 7) // 8, np.uint8)


def _binary(pa: Any, rows: int, arrays: tuple[Any, Any, Any], nulls: int, kind: Any = None) -> Any:
    offsets, data, valid = arrays
    return pa.Array.from_buffers(
        kind or pa.binary(),
        rows,
        [pa.py_buffer(valid) if nulls else None, pa.py_buffer(offsets), pa.py_buffer(data)],
        null_count=nulls,
    )


class _HeaderColumns:
    """Room for ``list<struct<key, value>>``, and its making. With 0 rows it is only something to pass on."""

    def __init__(self, np: Any, kernels: Any, rows: int, sizes: Any) -> None:
        self._count = int(sizes[kernels.HEADERS])
        self._null_values = int(sizes[kernels.NULL_HEADER_VALUES])
        keys = _bytes_column(np, self._count, sizes[kernels.HEADER_KEY_BYTES])
        values = _bytes_column(np, self._count, sizes[kernels.HEADER_VALUE_BYTES])
        list_offsets = np.empty(rows + 1, np.int32)
        list_offsets[0] = 0
        self.lists = (list_offsets, np.zeros((rows + 7) // 8, np.uint8))
        self.arrays = (keys[0], keys[1], *values)

    def column(self, pa: Any, rows: int) -> Any:
        key_offsets, key_data, *values = self.arrays
        keys = _binary(pa, self._count, (key_offsets, key_data, None), 0)
        structs = pa.StructArray.from_arrays(
            [_as_text(pa, keys), _binary(pa, self._count, tuple(values), self._null_values)],
            fields=[pa.field("key", pa.string()), pa.field("value", pa.binary())],
        )
        offsets, valid = self.lists
        return pa.Array.from_buffers(
            _headers_type(pa), rows, [pa.py_buffer(valid), pa.py_buffer(offsets)], children=[structs]
        )


def _as_text(pa: Any, keys: Any) -> Any:
    """Header keys as strings; bytes that are no UTF-8 are replaced, as the Java clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
