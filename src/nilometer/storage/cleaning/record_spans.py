"""The positions of a batch's records in its bytes, found without decoding the records.

The cleaner copies records unchanged. It needs the key, whether there is a value, and the position of the
timestamp delta, which changes with the batch's base timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.varint import VARLONG_BYTES_MAX, decode_zigzag, encode_zigzag


class RecordSpan(NamedTuple):
    """One record. Positions are in the decompressed bytes of the batch's records."""

    start: int
    """Position of the record's first byte (its length field)."""
    end: int
    timestamp_delta: int
    behind_timestamp: int
    """Position after the timestamp delta."""
    offset_delta: int
    key: bytes | None
    has_value: bool


def record_spans(data: bytes, header: BatchHeader) -> Iterator[RecordSpan]:
    """Yield the span of every record in ``data``, in order. Raises CorruptBatch."""
    try:
        yield from _spans(data, header.records_count)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error


def _spans(data: bytes, count: int) -> Iterator[RecordSpan]:
    make = RecordSpan._make
    start, data_end = 0, len(data)
    for _ in range(count):
        length, position = decode_zigzag(data, start)
        end = position + length
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        timestamp_delta, behind = decode_zigzag(data, position + 1, VARLONG_BYTES_MAX)
        offset_delta, position = decode_zigzag(data, behind)
        size, position = decode_zigzag(data, position)
        key = None
        if size >= 0:
            key = data[position : position + size]
            position += size
        if position >= end:
            raise CorruptBatch(f"a key of {size} bytes ends behind its record")
        size, position = decode_zigzag(data, position)
        if position + size > end:
            raise CorruptBatch(f"a value of {size} bytes ends behind its record")
        yield make((start, end, timestamp_delta, behind, offset_delta, key, size >= 0))
        start = end
    if start != data_end:
        raise CorruptBatch(f"{data_end - start} bytes behind the last record")


def with_timestamp_delta(data: bytes, span: RecordSpan, timestamp_delta: int) -> bytes:
    """Return the record's bytes with another timestamp delta, otherwise unchanged."""
    length, attributes_at = decode_zigzag(data, span.start)
    body = b"".join(
        (
            data[attributes_at : attributes_at + 1],
            encode_zigzag(timestamp_delta),
            data[span.behind_timestamp : span.end],
        )
    )
    assert length > 0, "a record has attributes"
    return encode_zigzag(len(body)) + body
