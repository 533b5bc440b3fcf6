"""Record batches of magic 2, in a buffer at a position.

Reads and writes the 61-byte header and checks the CRC. Records are not decoded, and batches not copied.

Invariants: the CRC covers all bytes from the attributes on, so base offset and partition leader epoch can be
changed without a new CRC; ``last_offset`` is valid even if compaction removed the last record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c
from msgspec import structs

from nilometer.wire.compression import Bytes, Codec
from nilometer.wire.errors import CorruptBatch, InvalidRecord, UnsupportedMagic

__all__ = [
    "HEADER_BYTES",
    "LOG_OVERHEAD",
    "MAGIC",
    "NO_PARTITION_LEADER_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "BatchHeader",
    "CorruptBatch",
    "InvalidRecord",
    "UnsupportedMagic",
    "batch_attributes",
    "batches",
    "check_batch",
    "check_produced_batch",
    "pack_batch",
    "patched_header",
    "read_header",
    "with_codec",
    "without_producer",
]

MAGIC = 2
HEADER_BYTES = 61
LOG_OVERHEAD = 12
"""Bytes of the base offset and the batch length, which ``batch_length`` does not count."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_PARTITION_LEADER_EPOCH = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CHECKED = struct.Struct(">qi4xbIhi30xi")
"""Base offset, length, magic, CRC, attributes, last offset delta and count."""
_OFFSETS = struct.Struct(">qi4xb6xi").unpack_from
"""Base offset, length, magic and last offset delta."""
_PACK_OFFSET = struct.Struct(">q").pack_into
_PACK_EPOCH = struct.Struct(">i").pack_into
ASSIGNED_BYTES = 16
"""At the start of a batch: the offset, the length and the epoch that the leader assigns. The CRC does not
cover them."""
assigned_start = struct.Struct(">qii").pack
"""Encode them, from (base offset, batch length, leader epoch)."""
_CRC_START = 21
_MAGIC_POSITION = 16
_LENGTH_MIN = HEADER_BYTES - LOG_OVERHEAD

_CODEC_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
_CODEC_LAST = max(Codec)
_CODECS = tuple(sorted(Codec))
"""By number: finding one in the enumeration takes as long as parsing the header."""
_SEQUENCES = 1 << 31


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header's fields, in the order of the bytes. Not a tuple: its fields are found faster."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """The compression codec. Raises CorruptBatch for an unknown number."""
        number = self.attributes & _CODEC_MASK
        if number > _CODEC_LAST:
            raise CorruptBatch(f"unknown compression codec {number}")
        return _CODECS[number]

    @property
    def is_compressed(self) -> bool:
        return self.attributes & _CODEC_MASK != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is ``max_timestamp``, set by the broker."""
        return self.attributes & _LOG_APPEND_TIME != 0

    @property
    def timestamp_type(self) -> int:
        """0 = CreateTime, 1 = LogAppendTime."""
        return (self.attributes & _LOG_APPEND_TIME) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & _TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & _CONTROL != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether ``base_timestamp`` is the time from which compaction may drop tombstones (KIP-534)."""
        return self.attributes & _DELETE_HORIZON != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequence numbers wrap to 0 after 2^31 - 1."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES


def read_header(buffer: Bytes, position: int = 0) -> BatchHeader:
    """Return the batch header at ``position``. Raises UnsupportedMagic, CorruptBatch if it is invalid."""
    try:
        header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    except struct.error:
        _refuse_old_magic(buffer, position)
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header") from None
    if header.magic != MAGIC:
        raise UnsupportedMagic(header.magic)
    if header.batch_length < _LENGTH_MIN:
        raise CorruptBatch(f"batch length {header.batch_length} is less than {_LENGTH_MIN}")
    return header


def batches(buffer: Bytes, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every complete batch from ``position`` on; ignore an incomplete last one.

    Raises UnsupportedMagic, CorruptBatch.
    """
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        following = position + header.batch_length + LOG_OVERHEAD
        if following > end:
            return
        yield position, header
        position = following
    if end - position > _MAGIC_POSITION:
        _refuse_old_magic(buffer, position)


def offset_range(buffer: Bytes) -> tuple[int, int]:
    """Return the base offset of the first complete batch and the offset after the last one; (-1, -1) if there
    is none.

    The same as with :func:`batches`, but faster. Raises UnsupportedMagic, CorruptBatch.
    """
    position, end = 0, len(buffer)
    first = following = -1
    while end - position >= HEADER_BYTES:
        base_offset, length, magic, last_delta = _OFFSETS(buffer, position)
        if magic != MAGIC or length < _LENGTH_MIN:
            read_header(buffer, position)  # raises the error
        if position + length + LOG_OVERHEAD > end:
            return first, following
        first = base_offset if first < 0 else first
        following = base_offset + last_delta + 1
        position += length + LOG_OVERHEAD
    if end - position > _MAGIC_POSITION:
        _refuse_old_magic(buffer, position)
    return first, following


def check_batch(buffer: Bytes, position: int, header: BatchHeader) -> None:
    """Check that the batch is complete and undamaged. Raises CorruptBatch or UnsupportedMagic.

    For any batch; ``check_produced_batch`` has the additional rules for producers.
    """
    if header.magic != MAGIC:
        raise UnsupportedMagic(header.magic)
    end = position + header.batch_length + LOG_OVERHEAD
    if header.batch_length < _LENGTH_MIN or end > len(buffer):
        raise CorruptBatch(f"batch of {header.size} bytes in {len(buffer) - position} remaining")
    crc = crc32c(memoryview(buffer)[position + _CRC_START : end])
    if crc != header.crc:
        raise CorruptBatch(f"computed CRC {crc:#010x} differs from the stored CRC {header.crc:#010x}")
    if header.last_offset_delta < 0 or not 0 <= header.records_count <= header.last_offset_delta + 1:
        raise CorruptBatch(
            f"{header.records_count} records cannot have a last offset delta of {header.last_offset_delta}"
        )
    if header.attributes & _CODEC_MASK > _CODEC_LAST:
        raise CorruptBatch(f"unknown compression codec {header.attributes & _CODEC_MASK}")


def skip_good_batches(
    buffer: Bytes, position: int, limit: int, next_offset: int, upper_bound_offset: int, batches_max: int
) -> tuple[int, int, int]:
    """Skip complete, valid batches; return the position and the next offset after them, and their number.

    The first batch must start at offset ``next_offset``, and each at the end of the one before it. Stops
    before a batch that ends beyond position ``limit`` or ``upper_bound_offset``, that leaves a gap or is
    invalid; the caller finds the reason with :func:`read_header` and :func:`check_batch`. The checks are the
    same, but faster, because no header object is created.
    """
    unpack = _CHECKED.unpack_from
    skipped = 0
    with memoryview(buffer) as view:
        while skipped < batches_max and limit - position >= HEADER_BYTES:
            base_offset, length, magic, crc, attributes, last_delta, count = unpack(view, position)
            end, following = position + length + LOG_OVERHEAD, base_offset + last_delta + 1
            if end > limit or following > upper_bound_offset or base_offset != next_offset:
                break
            if magic != MAGIC or length < _LENGTH_MIN or attributes & _CODEC_MASK > _CODEC_LAST:
                break
            if last_delta < 0 or not 0 <= count <= last_delta + 1:
                break
            if crc32c(view[position + _CRC_START : end]) != crc:
                break
            position, next_offset = end, following
            skipped += 1
    return position, next_offset, skipped


def check_produced_batch(header: BatchHeader) -> None:
    """Check the rules for producers: offsets without gaps, no control records. Raises InvalidRecord."""
    if header.records_count < 1 or header.records_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"{header.records_count} records with a last offset delta of {header.last_offset_delta}"
        )
    attributes, producer_id = header.attributes, header.producer_id
    if attributes & _CONTROL:
        raise InvalidRecord("clients may not write control records")
    if producer_id <= NO_PRODUCER_ID:
        if attributes & _TRANSACTIONAL:
            raise InvalidRecord("a transactional batch needs a producer id")
    elif header.base_sequence < 0 or header.producer_epoch < 0:
        raise InvalidRecord(
            f"producer {producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
        )


def patched_header(
    buffer: Bytes,
    position: int,
    *,
    base_offset: int,
    leader_epoch: int,
    max_timestamp: int | None = None,
    log_append_time: bool = False,
) -> bytes:
    """Return the header of the batch at ``position`` with the offset and epoch that the leader assigns.

    ``max_timestamp`` replaces the maximum timestamp and needs a new CRC; with ``log_append_time`` it is every
    record's timestamp. The records after the header do not change.
    """
    header = bytearray(memoryview(buffer)[position : position + HEADER_BYTES])
    _PACK_OFFSET(header, 0, base_offset)
    _PACK_EPOCH(header, 12, leader_epoch)
    if max_timestamp is not None:
        _set_max_timestamp(header, max_timestamp, log_append_time)
        (batch_length,) = struct.unpack_from(">i", header, 8)
        with memoryview(buffer) as view:
            records = view[position + HEADER_BYTES : position + LOG_OVERHEAD + batch_length]
            crc = crc32c(records, crc32c(header[_CRC_START:]))
        struct.pack_into(">I", header, 17, crc)
    return bytes(header)


def set_leader_epoch(buffer: bytearray, position: int, leader_epoch: int) -> None:
    """Change the leader epoch of the batch at ``position``, which its CRC does not cover."""
    _PACK_EPOCH(buffer, position + 12, leader_epoch)


def pack_batch(header: BatchHeader, records: Bytes) -> bytes:
    """Return a batch of ``header`` and compressed ``records``, with its length and CRC computed."""
    length = _LENGTH_MIN + len(records)
    header = structs.replace(header, batch_length=length, magic=MAGIC, crc=0)
    packed = bytearray(_HEADER.pack(*structs.astuple(header)))
    struct.pack_into(">I", packed, 17, crc32c(records, crc32c(packed[_CRC_START:])))
    return b"".join((packed, records))


def without_producer(header: BatchHeader) -> BatchHeader:
    """Return the header of the same records as a producer without an id would have sent them."""
    return structs.replace(
        header,
        attributes=header.attributes & ~_TRANSACTIONAL,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
    )


def with_codec(header: BatchHeader, codec: Codec) -> BatchHeader:
    return structs.replace(header, attributes=header.attributes & ~_CODEC_MASK | codec)


def batch_attributes(
    codec: Codec = Codec.NONE,
    *,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    delete_horizon: bool = False,
) -> int:
    return (
        codec
        | (_LOG_APPEND_TIME if log_append_time else 0)
        | (_TRANSACTIONAL if transactional else 0)
        | (_CONTROL if control else 0)
        | (_DELETE_HORIZON if delete_horizon else 0)
    )


def _set_max_timestamp(header: bytearray, max_timestamp: int, log_append_time: bool) -> None:
    (attributes,) = struct.unpack_from(">h", header, 21)
    attributes = attributes | _LOG_APPEND_TIME if log_append_time else attributes & ~_LOG_APPEND_TIME
    struct.pack_into(">h", header, 21, attributes)
    struct.pack_into(">q", header, 35, max_timestamp)


def _refuse_old_magic(buffer: Bytes, position: int) -> None:
    """Raise UnsupportedMagic for messages of magic 0 and 1.

    They may be shorter than a batch header, but have their magic at the same position.
    """
    if len(buffer) - position > _MAGIC_POSITION and (magic := buffer[position + _MAGIC_POSITION]) < MAGIC:
        raise UnsupportedMagic(magic)
