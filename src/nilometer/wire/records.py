"""The records in a batch: decoding them, building batches from them or from a transaction's marker, and
changing their codec.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nilometer.wire.compression import (
    DECOMPRESSED_BYTES_MAX,
    Bytes,
    Codec,
    compress,
    compressor_of,
    decompress,
)
from nilometer.wire.errors import BatchTooLarge, CorruptBatch
from nilometer.wire.primitives import (
    VARLONG_BYTES_MAX,
    ZIGZAG_TABLE,
    ZIGZAG_TABLE_SIZE,
    decode_zigzag,
    encode_zigzag,
)
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
    with_codec,
)

# The records in a batch: decoding them, and building batches from them.
#
# ``compression`` has the codecs and ``record_batch`` the header. Timestamps are arguments, in ms.
#
# Invariant: a batch from ``BatchBuilder`` passes ``check_batch`` and ``check_produced_batch``.

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
        raise CorruptBatch("a record has fewer bytes than its fields need") from error


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
            raise CorruptBatch(f"a record of {length} bytes where {data_end - position} are left")
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
            raise CorruptBatch(f"a value has the invalid length {size}")
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


SCANNED_RECORDS = 1_000
"""So many records are passed over in a step of ``records_between``: about a millisecond of work."""


def records_between(
    buffer: Bytes, position: int, header: BatchHeader, first_offset: int, last_offset: int, limit: int
) -> Generator[int, None, list[Record]]:
    """Decode those records of the batch at ``position`` that have these offsets, both included.

    The others are passed over. ``limit``: the largest decompressed size in bytes. Yields after each step how
    many bytes are decompressed. Raises CorruptBatch, BatchTooLarge.
    """
    data = records_data(buffer, position, header, limit)
    yield len(data)
    found: list[Record] = []
    alone = replace(header, records_count=1)
    at = 0
    try:
        for number in range(1, header.records_count + 1):
            length, after = decode_zigzag(data, at)
            end = after + length
            if length < 0 or end > len(data):
                raise CorruptBatch(f"a record of {length} bytes where {len(data) - after} are left")
            _, after = decode_zigzag(data, after + 1, VARLONG_BYTES_MAX)
            offset_delta, _ = decode_zigzag(data, after)
            offset = header.base_offset + offset_delta
            if offset > last_offset:
                break
            if offset >= first_offset:
                found += _decode_all(data[at:end], alone)
            at = end
            if not number % SCANNED_RECORDS:
                yield len(data)
    except IndexError as error:
        raise CorruptBatch("a record has fewer bytes than its fields need") from error
    return found


_NULL_BYTE = 1
"""The encoding of length -1."""


def _decode_bytes(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = decode_zigzag(data, position)
    if length < 0:
        if length != -1:
            raise CorruptBatch(f"a key or header has the invalid length {length}")
        return None, position
    following = position + length
    if following > end:
        raise CorruptBatch(f"a key or header of {length} bytes where {end - position} of the record are left")
    return data[position:following], following


def _decode_headers(data: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = decode_zigzag(data, position)
    if not 0 <= count <= end - position:
        raise CorruptBatch(f"a record has {count} headers in {end - position} bytes")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _decode_bytes(data, position, end)
        if name is None:
            raise CorruptBatch("a header has no name")
        value, position = _decode_bytes(data, position, end)
        headers.append((name.decode("utf-8", "replace"), value))  # as Java reads the names of other clients
    return tuple(headers), position


class NumberedHeaders(NamedTuple):
    """The headers of records that follow each other: one of them has a number, which rises by one."""

    before: Sequence[Header]
    name: str
    first: int
    """The number of the first record; the header has its decimal digits."""
    after: Sequence[Header]

    def of(self, index: int) -> tuple[Header, ...]:
        """Return the headers of a record, counted from 0."""
        return (*self.before, (self.name, b"%d" % (self.first + index)), *self.after)


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
        return self._add(
            timestamp,
            _NULL if key is None else encode_zigzag(len(key)) + key,
            value,
            _encode_headers(headers) if headers else b"\x00",
            self._room,
        )

    def append_numbered(
        self,
        timestamp: int,
        key: bytes | None,
        values: Sequence[bytes],
        start: int,
        headers: NumberedHeaders,
        bytes_max: int,
        value_max: int,
    ) -> int:
        """Add the records of ``values`` from index ``start`` on, as far as the batch has room, and at most
        ``bytes_max``; the first record of a batch is added in any case. Stop at a value of more than
        ``value_max`` bytes. Return the index of the first value that was not added."""
        encoded_key = _NULL if key is None else encode_zigzag(len(key)) + key
        name = headers.name.encode()
        count = encode_zigzag(len(headers.before) + 1 + len(headers.after))
        before = count + _encode_each(headers.before) + encode_zigzag(len(name)) + name
        after = _encode_each(headers.after)
        room = min(self._room, len(self._buffer) + bytes_max)
        first = headers.first
        for at in range(start, len(values)):
            value = values[at]
            number = b"%d" % (first + at)
            encoded = before + encode_zigzag(len(number)) + number + after
            if len(value) > value_max or not self._add(timestamp, encoded_key, value, encoded, room):
                return at
        return len(values)

    def _add(self, timestamp: int, key: bytes, value: bytes | None, headers: bytes, room: int) -> bool:
        """Add a record, unless the batch would exceed ``room``. ``key`` and ``headers`` are encoded."""
        count = self._records_count
        if count == 0:
            self._base_timestamp = self._max_timestamp = timestamp
        delta = timestamp - self._base_timestamp
        body = b"".join(
            (
                b"\x00",
                ZIGZAG_TABLE[delta] if 0 <= delta < ZIGZAG_TABLE_SIZE else encode_zigzag(delta),
                ZIGZAG_TABLE[count] if count < ZIGZAG_TABLE_SIZE else encode_zigzag(count),
                key,
                _NULL if value is None else encode_zigzag(len(value)),
                value or b"",
                headers,
            )
        )
        length = len(body)
        prefix = ZIGZAG_TABLE[length] if length < ZIGZAG_TABLE_SIZE else encode_zigzag(length)
        buffer = self._buffer
        if count and len(buffer) + len(prefix) + length > room:
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
    return encode_zigzag(len(headers)) + _encode_each(headers)


def _encode_each(headers: Sequence[Header]) -> bytes:
    parts: list[bytes] = []
    for name, value in headers:
        encoded = name.encode()
        parts += (encode_zigzag(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (encode_zigzag(len(value)), value)
    return b"".join(parts)


# Control records: transaction markers and others.
#
# Encodes and decodes a transaction marker. Key: version (int16, 0) and type (int16: 0 abort, 1 commit).
# Value: version (int16, 0) and the epoch of the transaction coordinator (int32). A batch with a marker has
# exactly this one record, a producer id, and is transactional.

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_VERSION = 0


class ControlType(enum.IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6
    UNKNOWN = -1


class EndTxnMarker(NamedTuple):
    control_type: ControlType
    """COMMIT or ABORT."""
    coordinator_epoch: int
    timestamp: int
    """Milliseconds since the epoch."""


def control_type(record: Record) -> ControlType:
    """Return the type of a record in a control batch; UNKNOWN for a newer type. Raises CorruptBatch."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("control record without a type")
    version, number = _KEY.unpack_from(record.key)
    if version < 0:
        raise CorruptBatch(f"invalid control record version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return ControlType.UNKNOWN


def end_txn_marker(record: Record) -> EndTxnMarker | None:
    """Return the marker in ``record``, None for a control record of another type. Raises CorruptBatch."""
    found = control_type(record)
    if found not in (ControlType.COMMIT, ControlType.ABORT):
        return None
    if record.value is None or len(record.value) < _MARKER.size:
        raise CorruptBatch("end transaction marker without a coordinator epoch")
    version, coordinator_epoch = _MARKER.unpack_from(record.value)
    if version < 0:
        raise CorruptBatch(f"invalid end transaction marker version {version}")
    return EndTxnMarker(found, coordinator_epoch, record.timestamp)


def read_end_txn_marker(buffer: Bytes, position: int, header: BatchHeader) -> EndTxnMarker | None:
    """Return the marker in a control batch; None for other control records and a batch without a marker.

    Raises CorruptBatch if the records cannot be decoded.
    """
    records = decode_records(buffer, position, header)
    try:
        return end_txn_marker(records[0]) if records else None
    except CorruptBatch:
        return None


def build_end_txn_marker(
    marker: EndTxnMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    base_offset: int = 0,
    partition_leader_epoch: int = NO_PARTITION_LEADER_EPOCH,
) -> bytes:
    """Return the control batch that ends the producer's transaction in a partition."""
    if marker.control_type not in (ControlType.COMMIT, ControlType.ABORT):
        raise ValueError(f"{marker.control_type.name} does not end a transaction")
    builder = BatchBuilder()
    builder.append(
        marker.timestamp,
        _KEY.pack(_VERSION, marker.control_type),
        _MARKER.pack(_VERSION, marker.coordinator_epoch),
    )
    return builder.build(
        base_offset,
        producer_id,
        producer_epoch,
        transactional=True,
        control=True,
        partition_leader_epoch=partition_leader_epoch,
    )


# Changing the codec of a batch, for topics whose ``compression.type`` is not the producer's.
#
# The uncompressed records do not change, nor do offsets and producer fields in the header. The records pass
# by piece by piece: neither they nor the new batch, where that becomes too large, are ever held whole.


class Recompression:
    """Compresses the decompressed records of a batch with another codec while they are read."""

    def __init__(
        self, target: Codec, level: int | None = None, size_max: int = DECOMPRESSED_BYTES_MAX
    ) -> None:
        """``size_max``: of the new batch, in bytes."""
        self._target = target
        self._compressor = compressor_of(target, level)
        self._done: list[bytes] = []
        self._size = HEADER_BYTES
        self._size_max = size_max

    def passing(self, decompressed: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces ``decompressed``, each after it was compressed. Raises BatchTooLarge."""
        for piece in decompressed:
            self._add(self._compressor.compress(piece))
            yield piece
        self._add(self._compressor.flush())

    def _add(self, packed: bytes) -> None:
        self._done.append(packed)
        self._size += len(packed)
        if self._size > self._size_max:
            raise BatchTooLarge(f"batch would have more than {self._size_max} bytes in the topic's codec")

    def batch(self, header: BatchHeader) -> bytes:
        """Return the new batch, after the last piece; ``header``: of the former one."""
        return pack_batch(with_codec(header, self._target), b"".join(self._done))
