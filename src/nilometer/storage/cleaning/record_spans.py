"""The positions of a batch's records in its bytes, found without decoding the records.

For batches that get a delete horizon: it takes the place of the base timestamp, so every timestamp delta
changes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.varint import VARLONG_BYTES_MAX, decode_zigzag, encode_zigzag

RecordSpan: TypeAlias = tuple[int, int, int, int, int, bytes | None, bool]
"""One record: the position of its first byte (its length field) and of the end, the timestamp delta and the
position after it, the offset delta, the key, and whether it has a value. Positions are in the decompressed
bytes of the batch's records."""


def record_spans(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yield the span of every record in ``data``, in order. Raises CorruptBatch."""
    try:
        yield from _spans(data, header.records_count)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error


def _spans(data: bytes, count: int) -> Iterator[RecordSpan]:
    start, data_end = 0, len(data)
    for _ in range(count):
        if (low := data[start]) < 0x80:
            length, position = (low >> 1) ^ -(low & 1), start + 1
        elif (high := data[start + 1]) < 0x80:
            length = low & 0x7F | high << 7
            length, position = (length >> 1) ^ -(length & 1), start + 2
        else:
            length, position = decode_zigzag(data, start)
        end = position + length
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        if (low := data[position + 1]) < 0x80:
            timestamp_delta, behind = (low >> 1) ^ -(low & 1), position + 2
        else:
            timestamp_delta, behind = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
        if (low := data[behind]) < 0x80:
            offset_delta, position = (low >> 1) ^ -(low & 1), behind + 1
        else:
            offset_delta, position = decode_zigzag(data, behind)
        if (low := data[position]) < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            size, position = decode_zigzag(data, position)
        key = None
        if size >= 0:
            key = data[position : position + size]
            position += size
        if position >= end:
            raise CorruptBatch(f"a key of {size} bytes exceeds its record")
        if (low := data[position]) < 0x80:
            size, position = (low >> 1) ^ -(low & 1), position + 1
        else:
            size, position = decode_zigzag(data, position)
        if position + size > end:
            raise CorruptBatch(f"a value of {size} bytes exceeds its record")
        yield start, end, timestamp_delta, behind, offset_delta, key, size >= 0
        start = end
    if start != data_end:
        raise CorruptBatch(f"{data_end - start} bytes after the last record")


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
