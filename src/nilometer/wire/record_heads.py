"""Reading the heads of a batch's records, in steps of bounded work: offset, timestamp, whether there is a
key.

Keys, values and headers are checked and passed over. What is held is a piece of the decompressed bytes
(:func:`~nilometer.wire.compression.pieces`), whatever the sizes of the batch and of its records. A step ends
with a piece, and after ``STEP_ITEMS`` records or headers: Python code holds the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, pieces
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.primitives import VARINT_BYTES_MAX, VARLONG_BYTES_MAX, decode_zigzag
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader

STEP_ITEMS = 1000
"""How many records and headers a step reads: about a millisecond of work."""
_FIELDS_BYTES = 26
"""At most so many bytes stand before the key of a record."""


class RecordHeads(NamedTuple):
    """The records of one step, in order; possibly none."""

    offset_deltas: list[int]
    timestamps: list[int]
    keyless: list[int]
    """Which of the batch's records, counted from 0, have no key."""
    bytes_read: int
    """How many bytes of the batch were decompressed before this step."""


def record_heads(
    buffer: Bytes, position: int, header: BatchHeader, limit: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[RecordHeads]:
    """Read the batch at ``position`` of ``buffer``; yield after each step.

    ``limit``: the largest decompressed size in bytes. Raises CorruptBatch, BatchTooLarge.
    """
    with memoryview(buffer) as view, view[position + HEADER_BYTES : position + header.size] as data:
        yield from heads_in(pieces(header.codec, data, limit), header)


def heads_in(decompressed: Iterator[bytes], header: BatchHeader) -> Iterator[RecordHeads]:
    """Read the records in the pieces ``decompressed``; yield after each step. Raises CorruptBatch."""
    cursor = _Cursor(decompressed)
    count = header.records_count
    heads, done = cursor.no_heads(), 0
    while done < count:
        before = len(heads.timestamps)
        stops_within = _read_whole(cursor, header, done, heads)
        done += len(heads.timestamps) - before
        if stops_within:
            apart = cursor.no_heads()
            for _ in _read_apart(cursor, header, done, apart):
                yield heads
                heads = cursor.no_heads()
            for field, found in zip(heads[:3], apart[:3], strict=True):
                field += found
            done += 1
        else:
            yield heads
            heads = cursor.no_heads()
    for _ in cursor.need(1):
        yield heads
        heads = cursor.no_heads()
    if cursor.left:
        raise CorruptBatch(f"{cursor.left} bytes after the last record")
    if heads.timestamps:
        yield heads


class _Cursor:
    """A position in decompressed bytes that arrive piece by piece."""

    __slots__ = ("_passed", "_pieces", "at", "data")

    def __init__(self, decompressed: Iterator[bytes]) -> None:
        self._pieces = decompressed
        self._passed = 0
        self.data = b""
        self.at = 0

    @property
    def left(self) -> int:
        """How many bytes follow in the present piece."""
        return len(self.data) - self.at

    @property
    def position(self) -> int:
        return self._passed + self.at

    def no_heads(self) -> RecordHeads:
        return RecordHeads([], [], [], self._passed + len(self.data))

    def need(self, size: int) -> Iterator[None]:
        """Read on until ``size`` bytes follow, or all that there are; yield after each piece."""
        while self.left < size and (piece := next(self._pieces, None)) is not None:
            self._passed += self.at
            self.data, self.at = self.data[self.at :] + piece, 0
            yield

    def skip(self, size: int) -> Iterator[None]:
        """Pass over ``size`` bytes. Raises CorruptBatch if there are fewer."""
        while size > self.left:
            size -= self.left
            self.at = len(self.data)
            yield from self.need(1)
            if not self.left:
                raise CorruptBatch(f"{size} bytes are missing at the end")
        self.at += size

    def integer(self, bytes_max: int = VARINT_BYTES_MAX) -> int:
        value, self.at = decode_zigzag(self.data, self.at, bytes_max)
        return value

    def length(self) -> int:
        """Read a length, -1 for null. Raises CorruptBatch, IndexError."""
        if (length := self.integer()) < -1:
            raise CorruptBatch(f"a key, value or header has the invalid length {length}")
        return length


def _read_whole(cursor: _Cursor, header: BatchHeader, first: int, heads: RecordHeads) -> bool:
    """Read the records that the present piece has whole, from number ``first`` on, into ``heads``: as many as
    one step may.

    Return whether it stopped because the next record is not whole, or has too many headers for this step.
    """
    data, at, items = cursor.data, cursor.at, STEP_ITEMS
    deltas, timestamps, keyless, _ = heads
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    index = first
    try:
        for index in range(first, header.records_count):
            cursor.at = at
            if items <= 0:
                return False
            try:
                length, at = decode_zigzag(data, at)
            except IndexError:
                return True
            end = at + length
            if end > len(data):
                return True
            at += 1
            if (byte := data[at]) < 0x80:
                delta_ms, at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                delta_ms, at = decode_zigzag(data, at, VARLONG_BYTES_MAX)
            offset_delta, at = decode_zigzag(data, at)
            key_size, at = decode_zigzag(data, at)
            if key_size >= 0:
                at += key_size
            elif key_size != -1:
                raise CorruptBatch(f"record {index} has a key of the invalid length {key_size}")
            size, at = decode_zigzag(data, at)
            if size >= 0:
                at += size
            elif size != -1:
                raise CorruptBatch(f"record {index} has a value of the invalid length {size}")
            if data[at]:
                count, at = decode_zigzag(data, at)
                if count > items:
                    return items == STEP_ITEMS
                at = _pass_headers(data, at, count)
                items -= count
            else:
                at += 1
            if at != end:
                raise CorruptBatch(f"record {index} does not end where its length says")
            if key_size < 0:
                keyless.append(index)
            deltas.append(offset_delta)
            timestamps.append(
                header.base_timestamp + delta_ms if fixed_timestamp is None else fixed_timestamp
            )
            items -= 1
        cursor.at = at
    except IndexError as error:
        raise CorruptBatch(f"record {index} has fewer bytes than its fields need") from error
    return False


def _pass_headers(data: bytes, at: int, count: int) -> int:
    """Return the position after ``count`` headers. Raises CorruptBatch, IndexError."""
    if count < 0:
        raise CorruptBatch(f"a record has {count} headers")
    for _ in range(count):
        size, at = decode_zigzag(data, at)
        if size < 0:
            raise CorruptBatch("a header has no name")
        size, at = decode_zigzag(data, at + size)
        if size < -1:
            raise CorruptBatch(f"a header has the invalid length {size}")
        at += max(size, 0)
    return at


def _read_apart(cursor: _Cursor, header: BatchHeader, index: int, heads: RecordHeads) -> Iterator[None]:
    """Read record number ``index`` into ``heads``, from as many pieces as it has; yield after each, and after
    ``STEP_ITEMS`` headers. Raises CorruptBatch."""
    try:
        yield from cursor.need(_FIELDS_BYTES)
        length = cursor.integer()
        end = cursor.position + length
        cursor.at += 1
        delta_ms = cursor.integer(VARLONG_BYTES_MAX)
        offset_delta = cursor.integer()
        if (key_size := cursor.length()) < 0:
            heads.keyless.append(index)
        yield from cursor.skip(max(key_size, 0))
        yield from cursor.need(VARINT_BYTES_MAX)
        yield from cursor.skip(max(cursor.length(), 0))
        yield from cursor.need(VARINT_BYTES_MAX)
        if (count := cursor.integer()) < 0:
            raise CorruptBatch(f"record {index} has {count} headers")
        for number in range(count):
            if number % STEP_ITEMS == 0:
                yield
            yield from cursor.need(VARINT_BYTES_MAX)
            if (size := cursor.integer()) < 0:
                raise CorruptBatch("a header has no name")
            yield from cursor.skip(size)
            yield from cursor.need(VARINT_BYTES_MAX)
            yield from cursor.skip(max(cursor.length(), 0))
    except IndexError as error:
        raise CorruptBatch(f"record {index} has fewer bytes than its fields need") from error
    if cursor.position != end:
        raise CorruptBatch(f"record {index} does not end where its length says")
    heads.offset_deltas.append(offset_delta)
    heads.timestamps.append(
        header.max_timestamp if header.is_log_append_time else header.base_timestamp + delta_ms
    )
