"""The checks and changes that the leader makes in a batch before it assigns offsets.

In every batch the size, magic, CRC and counts are checked; in a client's batch also that the base offset is
0, that there are no gaps and no control records, and that timestamps are within bounds. Records are read only
if the header is not enough: on a compacted topic (each record needs a key), if a lower bound for timestamps
is set, to tell which records are too new, and if ``compression.type`` is another codec. Otherwise the CRC and
the header's counts are trusted.

Records are read in steps (:mod:`nilometer.wire.record_heads`), since a few bytes may hold millions of them,
or one of gigabytes; ``decompressed_bytes_max`` of :class:`~nilometer.storage.topic_config.LogConfig` bounds
what a batch may hold. The event loop takes steps within a :class:`ReadingAllowance`; what is left is for the
caller to run off it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import structs

from nilometer.steps import at_once
from nilometer.storage.errors import RecordsRejected
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.topic_config import AS_PRODUCED, LogConfig
from nilometer.wire.compression import DECOMPRESSED_BYTES_MAX, Bytes, Codec, pieces
from nilometer.wire.errors import BatchTooLarge, CorruptBatch, ErrorCode, InvalidRecord, KafkaError
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    batch_attributes,
    batches,
    check_batch,
    check_produced_batch,
    read_header,
)
from nilometer.wire.record_heads import RecordHeads, heads_in
from nilometer.wire.records import Recompression

T = TypeVar("T")

_TARGET_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

_CLIENT = AppendOrigin.CLIENT
_LONG_MAX = 2**63 - 1
RECORD_ERRORS_MAX = 1000
"""How many invalid records of a batch are named to the producer, which takes the others for valid ones."""


class ValidatedBatch(msgspec.Struct, frozen=True, gc=False):
    """A valid batch at ``buffer[position:]``."""

    buffer: Bytes
    position: int
    header: BatchHeader


ReadingSteps: TypeAlias = Generator[int, None, list[ValidatedBatch]]
"""Reads records; yields after each step how many bytes of the batch are decompressed; returns the batches."""


class UnreadRecords(Exception):
    """Records must be read before they are appended, beyond the allowance: ``steps`` do it, on any thread."""

    def __init__(self, steps: ReadingSteps) -> None:
        super().__init__("records must be read before they are appended")
        self.steps = steps


class ReadingAllowance:
    """How much of one request may be read on the event loop: about two milliseconds of work."""

    RECORDS = 1000
    BYTES = 64 * 1024
    COMPRESSED_BYTES = 16 * 1024
    STEPS = 3
    """More steps are not taken for one batch, whatever it decompresses to."""
    _OF_A_BATCH = 20
    """A batch costs as much as so many records."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records = self.RECORDS

    def take(self, header: BatchHeader) -> bool:
        """Count a batch; return whether it may be read now."""
        if header.size > (self.COMPRESSED_BYTES if header.is_compressed else self.BYTES):
            return False
        self._records -= self._OF_A_BATCH + header.records_count
        return self._records >= 0


def validate_batches(
    records: Bytes,
    config: LogConfig,
    origin: AppendOrigin,
    wall_ms: int,
    allowance: ReadingAllowance | None = None,
) -> list[ValidatedBatch]:
    """Check the batches in ``records``; return them, recompressed if ``compression.type`` requires it.

    ``allowance``: None if all may be read at once. Raises KafkaError for the first invalid batch;
    UnreadRecords.
    """
    found: list[ValidatedBatch] = []
    total, must_read = 0, False
    for position, header in batches(records):
        size = header.batch_length + LOG_OVERHEAD
        total += size
        if size > config.max_message_bytes and origin is _CLIENT:
            raise _too_large(size, config.max_message_bytes)
        check_batch(records, position, header)
        if origin is _CLIENT:
            check_produced_batch(header)
            if header.base_offset != 0:
                raise InvalidRecord(f"base offset is {header.base_offset}, a producer must send 0")
        must_read |= _must_read(header, config, origin, wall_ms)
        found.append(ValidatedBatch(records, position, header))
    if not found or total != len(records):
        raise CorruptBatch(f"{len(records) - total} bytes are not a complete batch")
    if must_read:
        steps = _read_all(found, config, origin, wall_ms)
        return at_once(steps) if allowance is None else _run_within(allowance, found, steps, config)
    _check_fits_a_segment(total, config)
    return found


def _must_read(header: BatchHeader, config: LogConfig, origin: AppendOrigin, wall_ms: int) -> bool:
    """Whether the header is not enough. Raises KafkaError if no producer may send it."""
    if origin is _CLIENT and not config.is_log_append_time:
        if header.is_log_append_time:
            raise KafkaError(ErrorCode.invalid_timestamp, "a producer may not set LogAppendTime")
        if header.max_timestamp - wall_ms > config.message_timestamp_after_max_ms:
            return True
        if config.message_timestamp_before_max_ms != _LONG_MAX:
            return True
    if config.keeps_as_produced or header.is_control:
        return False
    return (config.is_compacted and origin is _CLIENT) or _new_codec(header, config) is not None


def _new_codec(header: BatchHeader, config: LogConfig) -> Codec | None:
    if config.compression_type == AS_PRODUCED:
        return None
    codec = _TARGET_CODECS[config.compression_type]
    return None if codec is header.codec else codec


def _run_within(
    allowance: ReadingAllowance, found: Sequence[ValidatedBatch], steps: ReadingSteps, config: LogConfig
) -> list[ValidatedBatch]:
    """Take the steps that ``allowance`` gives. Raises KafkaError, UnreadRecords."""
    if all(_new_codec(one.header, config) is None and allowance.take(one.header) for one in found):
        try:
            for _ in range(allowance.STEPS):
                next(steps)
        except StopIteration as ended:
            return ended.value
    raise UnreadRecords(steps)


def _read_all(
    found: Sequence[ValidatedBatch], config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> ReadingSteps:
    read: list[ValidatedBatch] = []
    for one in found:
        if _must_read(one.header, config, origin, wall_ms):
            read.append((yield from _read(one, config, origin, wall_ms)))
        else:
            read.append(one)
    _check_fits_a_segment(sum(one.header.size for one in read), config)
    return read


def _read(
    batch: ValidatedBatch, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> Generator[int, None, ValidatedBatch]:
    """Check the records of a batch, and recompress them. Raises KafkaError."""
    header, is_clients = batch.header, origin is _CLIENT
    limit = config.decompressed_bytes_max if is_clients else DECOMPRESSED_BYTES_MAX
    if is_clients and header.is_compressed and header.records_count > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch of {header.records_count} records; compressed ones are read up to as many as "
            f"max.message.bytes says, {config.max_message_bytes}",
        )
    data = memoryview(batch.buffer)[batch.position + HEADER_BYTES : batch.position + header.size]
    decompressed = pieces(header.codec, data, limit)
    recompression = None
    if (codec := _new_codec(header, config)) is not None:
        size_max = config.max_message_bytes if is_clients else DECOMPRESSED_BYTES_MAX
        recompression = Recompression(codec, _level(codec, config), size_max)
        decompressed = recompression.passing(decompressed)
    checks = _Checks(header, config, is_clients, wall_ms)
    try:
        for heads in heads_in(decompressed, header):
            checks.look_at(heads)
            yield heads.bytes_read
    except BatchTooLarge as error:
        raise KafkaError(ErrorCode.message_too_large, error.message) from error
    checks.finish()
    if recompression is None:
        return batch
    attributes = batch_attributes(transactional=header.is_transactional)
    rebuilt = recompression.batch(
        structs.replace(header, attributes=attributes, max_timestamp=checks.newest, base_offset=0)
    )
    return ValidatedBatch(rebuilt, 0, read_header(rebuilt))


class _Checks:
    """The checks of one batch's records. An invalid record does not end the reading: all are to be named."""

    def __init__(self, header: BatchHeader, config: LogConfig, is_clients: bool, wall_ms: int) -> None:
        self._needs_keys = config.is_compacted and is_clients
        bounded = is_clients and not config.is_log_append_time
        self._oldest = wall_ms - config.message_timestamp_before_max_ms if bounded else -_LONG_MAX
        self._latest = wall_ms + config.message_timestamp_after_max_ms if bounded else _LONG_MAX
        self._expected = 0
        self._invalid: list[tuple[int, str]] = []
        self._invalid_count = 0
        self._code = ErrorCode.invalid_record
        self.newest = NO_TIMESTAMP

    def look_at(self, heads: RecordHeads) -> None:
        """Raises InvalidRecord if offsets are missing."""
        first = self._expected
        self._expected += len(heads.timestamps)
        if not heads.timestamps:
            return
        if heads.offset_deltas != list(range(first, self._expected)):
            raise InvalidRecord(f"the offsets of records {first} to {self._expected - 1} are not in order")
        keyless = frozenset(heads.keyless) if self._needs_keys else frozenset[int]()
        newest, oldest = max(heads.timestamps), min(heads.timestamps)
        self.newest = max(self.newest, newest)
        if not keyless and oldest >= self._oldest and newest <= self._latest:
            return
        for index, timestamp in enumerate(heads.timestamps, first):
            if index in keyless:
                self._reject(index, "A record in a compacted topic needs a key.")
            elif timestamp != NO_TIMESTAMP and not self._oldest <= timestamp <= self._latest:
                self._code = ErrorCode.invalid_timestamp
                self._reject(index, f"Timestamp {timestamp} is not within {self._oldest} and {self._latest}.")

    def _reject(self, index: int, message: str) -> None:
        self._invalid_count += 1
        if len(self._invalid) < RECORD_ERRORS_MAX:
            self._invalid.append((index, message))

    def finish(self) -> None:
        """Raises RecordsRejected."""
        if self._invalid:
            raise RecordsRejected(self._code, self._invalid, self._invalid_count)


def _level(codec: Codec, config: LogConfig) -> int | None:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    level = levels.get(codec)
    return None if level == -1 else level


def _check_fits_a_segment(written: int, config: LogConfig) -> None:
    if written > config.segment_bytes:
        raise KafkaError(
            ErrorCode.record_list_too_large,
            f"{written} bytes are more than a segment may hold ({config.segment_bytes})",
        )


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.message_too_large, f"a batch of {size} bytes is above max.message.bytes {limit}"
    )
