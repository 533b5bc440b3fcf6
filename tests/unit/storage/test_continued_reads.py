"""Readers that follow the end of a log read each batch once, and nothing else, however many they are."""

from __future__ import annotations

import pytest
from log_model import build_batch

from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300)
READERS = 3


def open_log(disk: MemoryDisk) -> Log:
    return Log.open(
        SegmentFiles.on(disk), "/data/t-0", TopicPartition("t", 0), CONFIG, OpenOptions(clean=True, wall_ms=1)
    )


def test_a_reader_that_continues_searches_nothing() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    offsets = [0] * READERS
    for number in range(100):
        log.append_as_follower(build_batch((b"%d" % number,), base_offset=number, epoch=0), wall_ms=1)
        is_first = number == 0 or log.segments.active.base_offset == number
        reads = disk.reads
        for reader in range(READERS):
            part = log.read(offsets[reader], 1_000_000, log.log_end_offset, only_cached=True)
            assert part is not None
            assert part.records
            offsets[reader] = part.next_offset
        assert offsets == [number + 1] * READERS
        assert is_first or disk.reads == reads + READERS
    assert len(log.segments) > 3


def read(log: Log, offset: int, max_bytes: int = 1_000_000, upper: int = 1_000_000) -> bytes:
    part = log.read(offset, max_bytes, upper, only_cached=True)
    assert part is not None
    return bytes(part.records)


def append(log: Log, number: int) -> bytes:
    """Append one record, and keep it in memory; return its batch as it is in the log."""
    log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=3, wall_ms=1, keeps=True)
    return build_batch((b"%d" % number,), base_offset=number, epoch=3)


def test_an_append_that_is_kept_is_read_from_memory() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    batches = [append(log, number) for number in range(3)]
    reads = disk.reads
    assert [read(log, 2), read(log, 2)] == [batches[2]] * 2
    assert disk.reads == reads
    log.keep_records(None)
    assert [read(log, number, upper=number + 1) for number in range(3)] == batches
    assert disk.reads > reads
    batches.append(append(log, 3))
    log.keep_records(None)
    reads = disk.reads
    assert read(log, 3) == batches[3]
    assert disk.reads == reads + 1, "where it is was noted by the read from memory"


def test_what_is_kept_is_within_the_limits_of_a_read() -> None:
    disk = MemoryDisk()
    log = open_log(disk)
    batches = [append(log, number) for number in range(3)]
    assert read(log, 2, upper=2) == b""
    part = log.read(2, len(batches[2]) - 1, 3, min_one=False, only_cached=True)
    assert part is not None
    assert part.records == b""
    assert read(log, 1) == batches[1] + batches[2]
    assert read(log, 2) == batches[2]


@pytest.mark.parametrize("keep", [0, 2])
def test_what_is_kept_is_forgotten_with_a_truncation(keep: int) -> None:
    log = open_log(MemoryDisk())
    append(log, 0)
    append(log, 1)
    append(log, 2)
    log.truncate_to(keep, wall_ms=1)
    log.append_as_leader(build_batch((b"other",)), leader_epoch=4, wall_ms=1)
    assert read(log, keep) == build_batch((b"other",), base_offset=keep, epoch=4)
