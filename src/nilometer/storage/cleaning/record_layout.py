"""The records of a batch in its bytes, found without decoding them: where each begins, what its key is, and
which follow each other with the same layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from struct import iter_unpack
from typing import NamedTuple, TypeAlias

from nilometer.compiled.widths import BytesView, Int64
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.primitives import VARLONG_BYTES_MAX, decode_zigzag, encode_zigzag
from nilometer.wire.record_batch import BatchHeader

# The positions of a batch's records in its bytes, found without decoding the records.
#
# For batches that get a delete horizon: it takes the place of the base timestamp, so every timestamp delta
# changes, and nothing else.

RecordSpan: TypeAlias = tuple[int, int, int, int, int, bytes | None, bool]
"""One record: the position of its first byte (its length field) and of the end, the timestamp delta and the
position after it, the offset delta, the key, and whether it has a value. Positions are in the decompressed
bytes of the batch's records."""


def record_spans(data: bytes, header: BatchHeader) -> list[RecordSpan]:
    """Return the span of every record in ``data``, in order. Raises CorruptBatch."""
    try:
        return _spans(data, 0, header.records_count)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error


def _spans(data: bytes, start_at: int, count: int) -> list[RecordSpan]:
    """Return the spans of the last ``count`` records of ``data``, from ``start_at`` on.

    Integers of one and two bytes, which nearly all are, are decoded inline, since a call for each would take
    a third of the time.
    """
    view: BytesView = data
    data_end: Int64 = len(data)
    start: Int64 = start_at
    low: Int64
    high: Int64
    length: Int64
    position: Int64
    end: Int64
    timestamp_delta: Int64
    behind: Int64
    offset_delta: Int64
    size: Int64
    spans: list[RecordSpan] = []
    for _ in range(count):
        low = view[start]
        if low < 0x80:
            length, position = (low >> 1) ^ -(low & 1), start + 1
        else:
            high = view[start + 1]
            if high < 0x80:
                length = low & 0x7F | high << 7
                length, position = (length >> 1) ^ -(length & 1), start + 2
            else:
                length, position = decode_zigzag(data, start)
        end = position + length
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        low = view[position + 1]
        if low < 0x80:
            timestamp_delta, behind = (low >> 1) ^ -(low & 1), position + 2
        else:
            timestamp_delta, behind = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
        low = view[behind]
        if low < 0x80:
            offset_delta, position = (low >> 1) ^ -(low & 1), behind + 1
        else:
            high = view[behind + 1]
            if high < 0x80:
                offset_delta = low & 0x7F | high << 7
                offset_delta, position = (offset_delta >> 1) ^ -(offset_delta & 1), behind + 2
            else:
                offset_delta, position = decode_zigzag(data, behind)
        low = view[position]
        if low < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            size, position = decode_zigzag(data, position)
        key = None
        if size >= 0:
            key = data[position : position + size]
            position += size
        if position >= end:
            raise CorruptBatch(f"a key of {size} bytes exceeds its record")
        low = view[position]
        if low < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            high = view[position + 1]
            if high < 0x80:
                size = low & 0x7F | high << 7
                size, position = (size >> 1) ^ -(size & 1), position + 2
            else:
                size, position = decode_zigzag(data, position)
        if position + size > end:
            raise CorruptBatch(f"a value of {size} bytes exceeds its record")
        spans.append((start, end, timestamp_delta, behind, offset_delta, key, size >= 0))
        start = end
    if start != data_end:
        raise CorruptBatch(f"{data_end - start} bytes after the last record")
    return spans


def with_timestamp_delta(data: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """Return the record's bytes with another timestamp delta, otherwise unchanged."""
    start, end, _, behind_timestamp, *_ = span
    _, attributes_at = decode_zigzag(data, start)
    body = b"".join(
        (
            data[attributes_at : attributes_at + 1],
            encode_zigzag(timestamp_delta),
            data[behind_timestamp:end],
        )
    )
    return encode_zigzag(len(body)) + body


# Runs of records with the same layout: their keys have one length, and their values.
#
# Such records (counters, readings, identifiers) follow one another at equal distances, and Python reads the
# bytes at equal distances, a *column*, in one call. The first record of a run is decoded. The others belong
# to the run as far as their lengths have the same bytes: each begins where the one before it ends, so none is
# taken for what it is not. Where keys or values differ in length there is no run, and the records are read
# one by one.

RUN_MIN = 16
"""Fewer records than these are read faster one by one."""
RUN_MAX = 256
"""Limits what is read in vain where the records differ."""
_SIZE_MAX = 2
"""Largest size in bytes of an integer that is read by columns."""
_ENDS, _CONTINUES = bytes(range(0x80)), bytes(range(0x80, 0x100))
"""The last byte of an integer, and those before it."""

_TWO_BYTES_FROM, _TWO_BYTES_END = 1 << 6, 1 << 13
"""The offset deltas that have two bytes."""
_ONE = bytes(delta << 1 for delta in range(_TWO_BYTES_FROM))
_LOW = bytes(delta << 1 & 0x7F | 0x80 for delta in range(_TWO_BYTES_END))
_HIGH = bytes(delta >> 6 for delta in range(_TWO_BYTES_END))
"""The bytes of such deltas, in order."""


class UniformRun(NamedTuple):
    """Positions are those in the first record; each following record is ``stride`` bytes further on."""

    start: int
    stride: int
    records: int
    timestamp_at: int
    delta_at: int
    """Of the offset delta."""
    key_size_at: int
    key_at: int
    key_size: int
    """Negative: no record has a key."""
    has_values: bool

    @property
    def end(self) -> int:
        return self.start + self.stride * self.records

    def keys(self, data: bytes) -> list[bytes | None]:
        if self.key_size < 0:
            return [None] * self.records
        before = self.key_at - self.start
        layout = f"{before}x{self.key_size}s{self.stride - before - self.key_size}x"
        return [key for (key,) in iter_unpack(layout, memoryview(data)[self.start : self.end])]

    def offset_deltas(self, data: bytes) -> Sequence[int]:
        """Return the offset deltas; where they rise by one, no integer is decoded but the first."""
        at, size = self.delta_at, self.key_size_at - self.delta_at
        first, _ = decode_zigzag(data, at)
        expected = slice(max(first, 0), max(first, 0) + self.records)
        if size == 1:
            if self._column(data, at) == _ONE[expected]:
                return range(first, first + self.records)
            return [(byte >> 1) ^ -(byte & 1) for byte in self._column(data, at)]
        low, high = self._column(data, at), self._column(data, at + 1)
        if low == _LOW[expected] and high == _HIGH[expected]:
            return range(first, first + self.records)
        return [_decoded(*both) for both in zip(low, high, strict=True)]

    def timestamp_deltas(self, data: bytes, selectors: bytes) -> set[int]:
        """Return the timestamp deltas of the records whose byte in ``selectors`` is not 0."""
        column = self._column(data, self.timestamp_at)
        if self.delta_at - self.timestamp_at == 1:
            return {(byte >> 1) ^ -(byte & 1) for byte in set(compress(column, selectors))}
        pairs = zip(column, self._column(data, self.timestamp_at + 1), strict=True)
        return {_decoded(*both) for both in set(compress(pairs, selectors))}

    def _column(self, data: bytes, at: int) -> bytes:
        return data[at : self.end : self.stride]


def find_run(data: bytes, start: int, count: int) -> UniformRun | None:
    """Return the run of at most ``count`` records that begins at ``start``; None if it is too short.

    Raises CorruptBatch or IndexError if the first record cannot be read.
    """
    if count < RUN_MIN:
        return None
    length, attributes_at = decode_zigzag(data, start)
    stride = attributes_at + length - start
    timestamp_at = attributes_at + 1
    _, delta_at = decode_zigzag(data, timestamp_at, VARLONG_BYTES_MAX)
    _, key_size_at = decode_zigzag(data, delta_at)
    key_size, key_at = decode_zigzag(data, key_size_at)
    value_size_at = key_at + max(key_size, 0)
    if max(delta_at - timestamp_at, key_size_at - delta_at) > _SIZE_MAX or value_size_at >= start + stride:
        return None
    value_size, value_at = decode_zigzag(data, value_size_at)
    if value_at + max(value_size, 0) > start + stride:
        return None
    count = min(count, RUN_MAX, (len(data) - start) // stride)
    constant = (
        *range(start, attributes_at),
        *range(key_size_at, key_at),
        *range(value_size_at, value_at),
    )
    count = _count_alike(data, constant, stride, count)
    integers = (timestamp_at, delta_at), (delta_at, key_size_at)
    count = _count_of_sizes(data, integers, stride, count)
    if count < RUN_MIN:
        return None
    return UniformRun(
        start, stride, count, timestamp_at, delta_at, key_size_at, key_at, key_size, value_size >= 0
    )


def _count_alike(data: bytes, positions: Sequence[int], stride: int, count: int) -> int:
    """Return how many of ``count`` records have the same bytes as the first one at all ``positions``."""
    for at in positions:
        if count < RUN_MIN:
            break
        column = data[at : at + stride * count : stride]
        count = len(column) - len(column.lstrip(column[:1]))
    return count


def _count_of_sizes(data: bytes, integers: Sequence[tuple[int, int]], stride: int, count: int) -> int:
    """Return how many of ``count`` records have integers of the same size as the first one.

    ``integers``: the position of each, and the position after it.
    """
    for begin, end in integers:
        for at in range(begin, end):
            column = data[at : at + stride * count : stride]
            if at + 1 < end:
                count = len(column) - len(column.lstrip(_CONTINUES))
            elif not column.isascii():
                count = len(column) - len(column.lstrip(_ENDS))
    return count


def _decoded(low: int, high: int) -> int:
    value = low & 0x7F | high << 7
    return (value >> 1) ^ -(value & 1)


# Reading the keys of a batch's records, and which records are tombstones. Values are not copied.
#
# The cleaner reads every record of a log here: runs of records with the same layout by columns, the others
# one by one.


class RecordKeys(NamedTuple):
    keys: list[bytes | None]
    """The key of each record; None if it has none."""
    deltas: list[int]
    """The offset delta of each record."""
    tombstones: list[int]
    """Which records, counted from 0, have no value."""


def read_keys(data: bytes, header: BatchHeader) -> RecordKeys:
    """Return the keys of a batch's records, which are ``data`` when decompressed. Raises CorruptBatch."""
    found = RecordKeys([], [], [])
    start, left = 0, header.records_count
    try:
        while left and (run := find_run(data, start, left)) is not None:
            if not run.has_values:
                found.tombstones.extend(range(len(found.keys), len(found.keys) + run.records))
            found.keys.extend(run.keys(data))
            found.deltas.extend(run.offset_deltas(data))
            start = run.end
            left -= run.records
        spans, first = _spans(data, start, left), len(found.keys)
        found.deltas.extend([span[4] for span in spans])
        found.keys.extend([span[5] for span in spans])
        found.tombstones.extend([first + index for index, span in enumerate(spans) if not span[6]])
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error
    return found
