"""Readers that follow the end of a log read each batch once, and nothing else, however many they are."""

from __future__ import annotations

from log_model import build_batch

from nilometer.storage import Log, LogConfig, TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from support.logs.memory_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300)
READERS = 3


def test_a_reader_that_continues_searches_nothing() -> None:
    disk = MemoryDisk()
    log = Log.open(
        SegmentFiles.on(disk), "/data/t-0", TopicPartition("t", 0), CONFIG, OpenOptions(clean=True, wall_ms=1)
    )
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
