"""The checks and changes that the leader makes in a batch before it assigns offsets.

In every batch the size, magic, CRC and counts are checked; in a client's batch also that the base offset is
0, that there are no gaps and no control records, and that timestamps are within bounds. A batch is
decompressed only if the header is not enough: on a compacted topic (each record needs a key), if a lower
bound for timestamps is set, and if ``compression.type`` is another codec. Otherwise the CRC and the header's
counts are trusted.
"""

from __future__ import annotations

import msgspec

from nilometer.storage.log_config import LogConfig
from nilometer.storage.producers.producer_updates import AppendOrigin
from nilometer.wire.compression import Bytes, Codec
from nilometer.wire.errors import CorruptBatch, ErrorCode, InvalidRecord, KafkaError
from nilometer.wire.record_batch import (
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    BatchHeader,
    batches,
    check_batch,
    check_produced_batch,
    read_header,
)
from nilometer.wire.records import BatchBuilder, Record, decode_records

_TARGET_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_AS_PRODUCED = "producer"
"""The ``compression.type`` with which a batch keeps its codec."""

_CLIENT = AppendOrigin.CLIENT
_LONG_MAX = 2**63 - 1


class ValidatedBatch(msgspec.Struct, frozen=True, gc=False):
    """A valid batch at ``buffer[position:]``; ``new_timestamp`` replaces its timestamps unless None."""

    buffer: Bytes
    position: int
    header: BatchHeader
    new_timestamp: int | None


def validate_batches(
    records: Bytes, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> list[ValidatedBatch]:
    """Check the batches in ``records``; return them, recompressed if ``compression.type`` requires it.

    Raises KafkaError for the first invalid batch.
    """
    judged: list[ValidatedBatch] = []
    total = written = 0
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
        batch = _judge(records, position, header, config, origin, wall_ms)
        written += batch.header.batch_length + LOG_OVERHEAD
        judged.append(batch)
    if not judged or total != len(records):
        raise CorruptBatch(f"{len(records) - total} bytes are not a complete batch")
    if written > config.segment_bytes:
        raise KafkaError(
            ErrorCode.record_list_too_large,
            f"{written} bytes are more than a segment may hold ({config.segment_bytes})",
        )
    return judged


def _judge(
    records: Bytes, position: int, header: BatchHeader, config: LogConfig, origin: AppendOrigin, wall_ms: int
) -> ValidatedBatch:
    if config.is_log_append_time:
        new_timestamp = wall_ms
    else:
        new_timestamp = None
        if origin is _CLIENT:
            _check_timestamps(header, config, wall_ms)
    bounded_below = config.message_timestamp_before_max_ms != _LONG_MAX and not config.is_log_append_time
    if not (config.is_compacted or bounded_below) and config.compression_type == _AS_PRODUCED:
        return ValidatedBatch(records, position, header, new_timestamp)
    codec = _TARGET_CODECS.get(config.compression_type)
    recompress = codec is not None and codec != header.attributes & 7 and not header.is_control
    if not (config.is_compacted or recompress or bounded_below) or header.is_control:
        return ValidatedBatch(records, position, header, new_timestamp)
    decoded = decode_records(records, position, header, config.max_decompressed_message_bytes)
    _check_records(decoded, header, config, bounded_below and origin is _CLIENT, wall_ms)
    if not recompress or codec is None:
        return ValidatedBatch(records, position, header, new_timestamp)
    rebuilt = _recompressed(decoded, header, codec, config)
    if len(rebuilt) > config.max_message_bytes and origin is _CLIENT:
        raise _too_large(len(rebuilt), config.max_message_bytes)
    return ValidatedBatch(rebuilt, 0, read_header(rebuilt), new_timestamp)


def _check_timestamps(header: BatchHeader, config: LogConfig, wall_ms: int) -> None:
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.invalid_timestamp, "a producer may not set LogAppendTime")
    newest = header.max_timestamp
    if newest != NO_TIMESTAMP and newest - wall_ms > config.message_timestamp_after_max_ms:
        raise _out_of_bounds(newest, wall_ms, config)


def _check_records(
    decoded: list[Record], header: BatchHeader, config: LogConfig, bounded_below: bool, wall_ms: int
) -> None:
    for index, record in enumerate(decoded):
        if record.offset != header.base_offset + index:
            raise InvalidRecord(f"record {index} has offset delta {record.offset - header.base_offset}")
        if config.is_compacted and record.key is None:
            raise InvalidRecord(f"record {index} has no key, and the topic is compacted")
        if (
            bounded_below
            and record.timestamp != NO_TIMESTAMP
            and wall_ms - record.timestamp > config.message_timestamp_before_max_ms
        ):
            raise _out_of_bounds(record.timestamp, wall_ms, config)


def _recompressed(decoded: list[Record], header: BatchHeader, codec: Codec, config: LogConfig) -> bytes:
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    level = levels.get(codec)
    builder = BatchBuilder(codec, level=None if level == -1 else level)
    for record in decoded:
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return builder.build(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.message_too_large, f"a batch of {size} bytes is above max.message.bytes {limit}"
    )


def _out_of_bounds(timestamp: int, wall_ms: int, config: LogConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_timestamp,
        f"timestamp {timestamp} is not within [-{config.message_timestamp_before_max_ms}, "
        f"+{config.message_timestamp_after_max_ms}] ms of {wall_ms}",
    )
