"""The records in a batch: decoding them, and building batches from them.

``compression`` has the codecs and ``record_batch`` the header. Timestamps are arguments, in ms.

Invariant: a batch from ``BatchBuilder`` passes ``check_batch`` and ``check_produced_batch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, compress, decompress
from nilometer.wire.errors import CorruptBatch
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    batch_attributes,
    pack_batch,
)
from nilometer.wire.varint import (
    VARLONG_BYTES_MAX,
    ZIGZAG_TABLE,
    ZIGZAG_TABLE_SIZE,
    decode_zigzag,
    encode_zigzag,
)

Header = tuple[str, bytes | None]

RECORD_OVERHEAD_MAX = 21
"""Largest size in bytes of a record's fields other than key, value and headers (which have lengths of their
own): length 5, attributes 1, timestamp delta 10, offset delta 5."""


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def decode_records(
    buffer: Bytes, position: int, header: BatchHeader, limit: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """Decode the records of the batch at ``position``, with absolute offsets and timestamps.

    ``limit`` is the largest decompressed size in bytes. Raises CorruptBatch.
    """
    data = records_data(buffer, position, header, limit)
    try:
        return _decode_all(data, header)
    except IndexError as error:
        raise CorruptBatch(f"record cannot be read: {error}") from error


def records_data(
    buffer: Bytes, position: int, header: BatchHeader, limit: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """Return the decompressed bytes of a batch's records. Raises CorruptBatch."""
    with memoryview(buffer) as view:
        return decompress(header.codec, view[position + HEADER_BYTES : position + header.size], limit)


def _decode_all(data: bytes, header: BatchHeader) -> list[Record]:
    """Decode all records. Integers of one byte are decoded inline, since most have one byte and a call is
    slower."""
    records: list[Record] = []
    make = Record._make
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    position, data_end = 0, len(data)
    for _ in range(header.records_count):
        length, position = decode_zigzag(data, position)
        end = position + length
        if length < 0 or end > data_end:
            raise CorruptBatch(f"record of {length} bytes in {data_end - position} remaining")
        position += 1
        if (byte := data[position]) < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        else:
            timestamp_delta, position = decode_zigzag(data, position, VARLONG_BYTES_MAX)
        offset_delta, position = decode_zigzag(data, position)
        if data[position] == _NULL_BYTE:
            key = None
            position += 1
        else:
            key, position = _decode_bytes(data, position, end)
        size, position = decode_zigzag(data, position)
        if size >= 0:  # a value beyond the record's end is detected below
            value = data[position : position + size]
            position += size
        elif size == -1:
            value = None
        else:
            raise CorruptBatch(f"invalid value length {size}")
        if position < end and data[position] == 0:
            headers: tuple[Header, ...] = ()
            position += 1
        else:
            headers, position = _decode_headers(data, position, end)
        if position != end:
            raise CorruptBatch(f"record ends at byte {position}, but by its length at byte {end}")
        timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
        records.append(make((base_offset + offset_delta, timestamp, key, value, headers)))
    if position != data_end:
        raise CorruptBatch(f"{data_end - position} bytes after the last record")
    return records


_NULL_BYTE = 1
"""The encoding of length -1."""


def _decode_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = decode_zigzag(data, position)
    if length < 0:
        if length != -1:
            raise CorruptBatch(f"invalid length {length}")
        return None, position
    following = position + length
    if following > end:
        raise CorruptBatch(f"{length} bytes in {end - position} remaining of the record")
    return data[position:following], following


def _decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = decode_zigzag(data, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"{count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _decode_bytes(data, position, end)
        if name is None:
            raise CorruptBatch("header without a name")
        value, position = _decode_bytes(data, position, end)
        headers.append((name.decode("utf-8", "replace"), value))  # as Java reads the names of other clients
    return tuple(headers), position


class BatchBuilder:
    """Builds a batch from records.

    Invariants: offsets are 0, 1, 2, ... relative to the base; ``estimated_size`` never decreases, and is
    exact for an uncompressed batch.
    """

    __slots__ = (
        "_base_timestamp",
        "_buffer",
        "_codec",
        "_level",
        "_max_timestamp",
        "_records_count",
        "_room",
    )

    def __init__(self, codec: Codec = Codec.NONE, size_max: int = 1 << 30, level: int | None = None) -> None:
        """``size_max``: largest size in bytes before compression; one record alone may exceed it."""
        self._codec = codec
        self._level = level
        self._room = size_max - HEADER_BYTES
        self._buffer = bytearray()
        self._records_count = 0
        self._base_timestamp = 0
        self._max_timestamp = 0

    @property
    def records_count(self) -> int:
        return self._records_count

    @property
    def estimated_size(self) -> int:
        """Bytes of the batch before compression."""
        return HEADER_BYTES + len(self._buffer)

    @property
    def max_timestamp(self) -> int:
        return self._max_timestamp

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()
    ) -> bool:
        """Add a record; return False, with nothing added, if the batch would exceed ``size_max``."""
        count = self._records_count
        if count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        delta = timestamp - self._base_timestamp
        body = b"".join(
            (
                b"\x00",
                ZIGZAG_TABLE[delta] if 0 <= delta < ZIGZAG_TABLE_SIZE else encode_zigzag(delta),
                ZIGZAG_TABLE[count] if count < ZIGZAG_TABLE_SIZE else encode_zigzag(count),
                _NULL if key is None else encode_zigzag(len(key)) + key,
                _NULL if value is None else encode_zigzag(len(value)),
                value or b"",
                _encode_headers(headers) if headers else b"\x00",
            )
        )
        length = len(body)
        prefix = ZIGZAG_TABLE[length] if length < ZIGZAG_TABLE_SIZE else encode_zigzag(length)
        buffer = self._buffer
        if count and len(buffer) + len(prefix) + length > self._room:
            return False
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        buffer += prefix
        buffer += body
        self._records_count = count + 1
        return True

    def build(
        self,
        base_offset: int = 0,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        transactional: bool = False,
        control: bool = False,
        partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
    ) -> bytes:
        """Return the batch. May be called again, with another producer or sequence number."""
        if not self._records_count:
            raise ValueError("a batch needs a record")
        records = (
            self._buffer if self._codec is Codec.NONE else compress(self._codec, self._buffer, self._level)
        )
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=HEADER_BYTES - LOG_OVERHEAD + len(records),
            partition_leader_epoch=partition_leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=batch_attributes(self._codec, transactional=transactional, control=control),
            last_offset_delta=self._records_count - 1,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            records_count=self._records_count,
        )
        return pack_batch(header, records)


_NULL = encode_zigzag(-1)


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_zigzag(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_zigzag(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (encode_zigzag(len(value)), value)
    return b"".join(parts)
