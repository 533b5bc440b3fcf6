"""What a leader refuses, and what it changes on the batches that it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from log_model import build_batch
from msgspec import structs

from nilometer.steps import at_once
from nilometer.storage.appending import AppendInfo
from nilometer.storage.errors import RecordsRejected
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.record_validation import (
    RECORD_ERRORS_MAX,
    ReadingAllowance,
    UnreadRecords,
)
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.compression import Codec, compress
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    check_batch,
    pack_batch,
    read_header,
)
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
    assert (log.log_end_offset, log.size) == (0, 0)


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


def batch_of(codec: Codec, values: list[bytes], key: bytes | None = b"k") -> bytes:
    builder = BatchBuilder(codec)
    for value in values:
        builder.append(NOW_MS, key, value)
    return builder.build()


@pytest.mark.parametrize("config", [LogConfig(is_compacted=True), LogConfig(compression_type="gzip")])
@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4, Codec.SNAPPY])
def test_how_much_a_batch_may_hold_is_bounded(config: LogConfig, codec: Codec) -> None:
    """By a factor, and by a setting; Java's producer divides a batch that is refused so, and sends it
    again."""
    batch = batch_of(codec, [bytes(2_000_000), bytes(2_000_000)])
    limits = [{"max_decompressed_message_bytes": 3_999_999}]
    if codec is not Codec.SNAPPY:  # which makes nothing so small
        limits.append({"max_message_bytes": len(batch)})
    for limit in limits:
        with pytest.raises(KafkaError, match="decompress") as refusal:
            append(open_log(replace(config, **limit)), batch)
        assert refusal.value.code is ErrorCode.message_too_large
    assert append(open_log(config), batch).last_offset == 1


def test_a_batch_may_have_a_hundred_times_the_size_in_which_it_was_sent() -> None:
    batch = batch_of(Codec.ZSTD, [bytes(90_000)])
    config = LogConfig(is_compacted=True, max_message_bytes=1_000)
    assert config.decompressed_bytes_max == 100_000
    assert append(open_log(config), batch).last_offset == 0
    assert LogConfig().decompressed_bytes_max == 100 * 1_048_588
    assert LogConfig(max_message_bytes=1 << 30).decompressed_bytes_max == 128 << 20


def test_a_plain_topic_takes_what_it_need_not_read() -> None:
    batch = batch_of(Codec.ZSTD, [bytes(200_000_000)])
    assert append(open_log(LogConfig()), batch).last_offset == 0


def test_a_compressed_batch_has_no_more_records_than_a_batch_may_have_bytes() -> None:
    header = structs.replace(
        read_header(batch_of(Codec.ZSTD, [b""])), records_count=1_001, last_offset_delta=1_000
    )
    batch = pack_batch(header, compress(Codec.ZSTD, b"\x0e\x00\x00\x00\x02k\x01\x00" * 1_001))
    config = LogConfig(is_compacted=True, max_message_bytes=1_000)
    with pytest.raises(KafkaError, match="1001 records") as refusal:
        append(open_log(config), batch)
    assert refusal.value.code is ErrorCode.message_too_large


@pytest.mark.parametrize(
    ("config", "batch", "is_small"),
    [
        (LogConfig(), batch_of(Codec.ZSTD, [bytes(9_000_000)]), True),
        (LogConfig(is_compacted=True), batch_of(Codec.NONE, [b"v"] * 900), True),
        (LogConfig(is_compacted=True), batch_of(Codec.ZSTD, [b"v"] * 900), True),
        (LogConfig(is_compacted=True), batch_of(Codec.NONE, [b"v"] * 1_000), False),
        (LogConfig(is_compacted=True), batch_of(Codec.NONE, [bytes(70_000)]), False),
        (LogConfig(is_compacted=True), batch_of(Codec.ZSTD, [bytes(9_000_000)]), False),
        (LogConfig(is_compacted=True), batch_of(Codec.SNAPPY, [bytes(900_000)]), False),
        (LogConfig(compression_type="gzip"), batch_of(Codec.NONE, [b"v"]), False),
        (LogConfig(compression_type="gzip"), batch_of(Codec.GZIP, [b"v"]), True),
    ],
)
def test_what_is_read_on_the_event_loop_is_small(config: LogConfig, batch: bytes, is_small: bool) -> None:
    log = open_log(config)
    options = {"leader_epoch": 2, "wall_ms": NOW_MS}
    if is_small:
        assert log.append_as_leader(batch, allowance=ReadingAllowance(), **options).first_offset == 0
        return
    with pytest.raises(UnreadRecords) as unread:
        log.append_as_leader(batch, allowance=ReadingAllowance(), **options)
    assert log.log_end_offset == 0
    validated = at_once(unread.value.steps)
    log.append_as_leader(batch, validated=validated, **options)
    [(header, records)] = stored(log)
    assert header.records_count == len(records) == read_header(batch).records_count


def test_the_batches_of_one_request_share_what_may_be_read_on_the_event_loop() -> None:
    log, allowance = open_log(LogConfig(is_compacted=True)), ReadingAllowance()
    batch = batch_of(Codec.NONE, [b"v"] * 300)
    for _ in range(3):
        log.append_as_leader(batch, leader_epoch=2, wall_ms=NOW_MS, allowance=allowance)
    with pytest.raises(UnreadRecords):
        log.append_as_leader(batch, leader_epoch=2, wall_ms=NOW_MS, allowance=allowance)


def test_log_append_time_is_that_of_the_append_not_of_the_reading() -> None:
    log = open_log(LogConfig(is_log_append_time=True, compression_type="gzip"))
    with pytest.raises(UnreadRecords) as unread:
        log.append_as_leader(GOOD, leader_epoch=2, wall_ms=NOW_MS, allowance=ReadingAllowance())
    validated = at_once(unread.value.steps)
    log.append_as_leader(GOOD, leader_epoch=2, wall_ms=NOW_MS + 50, validated=validated)
    [(header, _)] = stored(log)
    assert (header.max_timestamp, header.codec) == (NOW_MS + 50, Codec.GZIP)


def test_the_newest_timestamp_of_a_recompressed_batch_is_that_of_its_records() -> None:
    header = read_header(GOOD)
    wrong = pack_batch(structs.replace(header, max_timestamp=NOW_MS - 7), GOOD[HEADER_BYTES:])
    log = open_log(LogConfig(compression_type="lz4"))
    append(log, wrong)
    assert [header.max_timestamp for header, _ in stored(log)] == [NOW_MS + 1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_all_invalid_records_are_named_and_each_once(codec: Codec) -> None:
    builder = BatchBuilder(codec)
    for number in range(5_000):
        timestamp = NOW_MS + 9_000_000 if number in (2_500, 4_999) else NOW_MS
        builder.append(timestamp, None if number % 2_500 == 0 else b"k", b"v")
    log = open_log(LogConfig(is_compacted=True))
    with pytest.raises(RecordsRejected, match="3 records") as rejected:
        append(log, builder.build())
    assert rejected.value.code is ErrorCode.invalid_timestamp
    assert [index for index, _ in rejected.value.records] == [0, 2_500, 4_999]
    assert "key" in rejected.value.records[1][1], "its first fault"
    assert log.log_end_offset == 0


def test_not_more_than_a_thousand_invalid_records_are_named() -> None:
    with pytest.raises(RecordsRejected, match="3000 records") as rejected:
        append(open_log(LogConfig(is_compacted=True)), batch_of(Codec.LZ4, [b"v"] * 3_000, key=None))
    assert [index for index, _ in rejected.value.records] == list(range(RECORD_ERRORS_MAX))
