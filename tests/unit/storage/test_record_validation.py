"""What a leader refuses, and what it changes on the batches that it takes."""

from __future__ import annotations

import pytest
from log_model import build_batch

from nilometer.storage import AppendInfo, Log, LogConfig, OpenOptions, SegmentFiles, TopicPartition
from nilometer.wire.compression import Codec
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import BatchHeader, batches, check_batch
from nilometer.wire.records import BatchBuilder, Record, decode_records
from support.logs.memory_disk import MemoryDisk

NOW_MS = 1_000_000
KEY = TopicPartition("t", 0)


def open_log(config: LogConfig) -> Log:
    options = OpenOptions(clean=True, wall_ms=NOW_MS)
    return Log.open(SegmentFiles.on(MemoryDisk()), "/data/t-0", KEY, config, options)


def append(log: Log, records: bytes) -> AppendInfo:
    return log.append_as_leader(records, leader_epoch=2, wall_ms=NOW_MS)


def stored(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    part = log.read(0, 1 << 20, log.log_end_offset)
    assert part is not None
    found: list[tuple[BatchHeader, list[Record]]] = []
    for position, header in batches(part.records):
        check_batch(part.records, position, header)
        found.append((header, decode_records(part.records, position, header)))
    return found


GOOD = build_batch((b"a", b"b"), timestamp=NOW_MS)


@pytest.mark.parametrize(
    ("config", "records", "code"),
    [
        (LogConfig(max_message_bytes=60), GOOD, ErrorCode.message_too_large),
        (LogConfig(segment_bytes=100), GOOD + GOOD, ErrorCode.record_list_too_large),
        (LogConfig(), GOOD[:-1], ErrorCode.corrupt_message),
        (LogConfig(), GOOD + b"\x00" * 7, ErrorCode.corrupt_message),
        (LogConfig(), b"", ErrorCode.corrupt_message),
        (LogConfig(), GOOD[:-1] + b"\x01", ErrorCode.corrupt_message),
        (LogConfig(), GOOD[:16] + b"\x01" + GOOD[17:], ErrorCode.unsupported_for_message_format),
        (LogConfig(), build_batch((b"a",), base_offset=4), ErrorCode.invalid_record),
        (LogConfig(), build_batch((b"a",), producer=(7, 0, -1)), ErrorCode.invalid_record),
        (
            LogConfig(is_compacted=True),
            build_batch((b"a",), timestamp=NOW_MS, key=None),
            ErrorCode.invalid_record,
        ),
        (
            LogConfig(message_timestamp_after_max_ms=500),
            build_batch((b"a",), timestamp=NOW_MS + 501),
            ErrorCode.invalid_timestamp,
        ),
        (
            LogConfig(message_timestamp_before_max_ms=500),
            build_batch((b"a",), timestamp=NOW_MS - 501),
            ErrorCode.invalid_timestamp,
        ),
    ],
)
def test_bad_batches_are_refused_and_nothing_is_written(
    config: LogConfig, records: bytes, code: ErrorCode
) -> None:
    log = open_log(config)
    with pytest.raises(KafkaError) as refusal:
        append(log, records)
    assert refusal.value.code is code
    assert (log.log_end_offset, log.state.size) == (0, 0)


def test_timestamps_within_bounds_are_kept() -> None:
    config = LogConfig(message_timestamp_after_max_ms=500, message_timestamp_before_max_ms=500)
    log = open_log(config)
    for timestamp in (NOW_MS - 500, NOW_MS + 499, -1):
        append(log, build_batch((b"a",), timestamp=timestamp))
    assert [header.max_timestamp for header, _ in stored(log)] == [NOW_MS - 500, NOW_MS + 499, -1]


def test_log_append_time_replaces_every_records_timestamp() -> None:
    log = open_log(LogConfig(is_log_append_time=True))
    info = append(log, build_batch((b"a", b"b"), timestamp=5))
    assert (info.log_append_time_ms, info.max_timestamp) == (NOW_MS, NOW_MS)
    [(header, records)] = stored(log)
    assert header.is_log_append_time
    assert [record.timestamp for record in records] == [NOW_MS, NOW_MS]


def test_offsets_and_epoch_are_assigned_to_every_batch_of_an_append() -> None:
    log = open_log(LogConfig())
    append(log, GOOD)
    info = append(log, GOOD + GOOD + GOOD)
    assert (info.first_offset, info.last_offset) == (2, 7)
    assert [header.base_offset for header, _ in stored(log)] == [0, 2, 4, 6]
    assert {header.partition_leader_epoch for header, _ in stored(log)} == {2}


@pytest.mark.parametrize("sent", Codec)
@pytest.mark.parametrize("target", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_the_log_has_the_codec_that_the_topic_asks_for(sent: Codec, target: str) -> None:
    log = open_log(LogConfig(compression_type=target))
    builder = BatchBuilder(sent)
    for index in range(20):
        builder.append(NOW_MS + index, b"key", b"value" * index, [("h", b"x")])
    append(log, builder.build(producer_id=7, producer_epoch=1, base_sequence=3))
    [(header, records)] = stored(log)
    expected = {"producer": sent, "uncompressed": Codec.NONE}.get(target)
    assert header.codec is (expected if expected is not None else Codec[target.upper()])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 3)
    assert [record.value for record in records] == [b"value" * index for index in range(20)]
    assert records[4].headers == (("h", b"x"),)
