"""A log is cut before damage, also where the damage hides the batches behind it."""

from __future__ import annotations

import pytest
from log_model import build_batch, read_from

from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

FOLDER = "/data/t-0"
BATCHES, DAMAGED = 8, 5
MAGIC_AT, LENGTH_AT, RECORDS_AT = 16, 8, 64


@pytest.mark.parametrize("place", [MAGIC_AT, LENGTH_AT, RECORDS_AT], ids=["magic", "length", "records"])
@pytest.mark.parametrize("index_interval_bytes", [1, 100_000], ids=["indexed", "not indexed"])
@pytest.mark.parametrize("asked", [DAMAGED, DAMAGED + 2], ids=["to the damage", "behind it"])
def test_a_cut_ends_before_damage(place: int, index_interval_bytes: int, asked: int) -> None:
    disk = MemoryDisk()
    options = OpenOptions(clean=True, wall_ms=1_000)
    config = LogConfig(index_interval_bytes=index_interval_bytes)
    log = Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), config, options)
    for number in range(BATCHES):
        records = build_batch((b"%d" % number,))
        log.append_as_leader(records, leader_epoch=0, wall_ms=1_000)
    path = f"{FOLDER}/00000000000000000000.log"
    size = disk.file_size(path) // BATCHES
    disk.flip_bit(path, DAMAGED * size + place, bit=6)
    log.truncate_to(asked, wall_ms=1_000)
    # Headers alone tell where to cut, and an index leads past those that cannot be read.
    end = asked if place == RECORDS_AT or index_interval_bytes == 1 else DAMAGED
    assert log.log_end_offset == end
    assert disk.file_size(path) == end * size
    assert read_from(log, 0, DAMAGED, 10_000) == [(number, b"%d" % number) for number in range(DAMAGED)]
    if end == DAMAGED:
        log.append_as_leader(build_batch((b"again",)), leader_epoch=1, wall_ms=1_000)
        assert read_from(log, DAMAGED, DAMAGED + 1, 10_000) == [(DAMAGED, b"again")]


@pytest.mark.parametrize("bit", [0, 1, 2], ids=["back by one", "ahead", "back by four"])
@pytest.mark.parametrize("index_interval_bytes", [1, 100_000], ids=["indexed", "not indexed"])
@pytest.mark.parametrize("damaged", [5, 0], ids=["behind others", "the first of a segment"])
def test_a_cut_takes_a_batch_whose_base_offset_is_damaged(
    bit: int, index_interval_bytes: int, damaged: int
) -> None:
    """The checksum does not cover the base offset: what goes back must not stay below the cut."""
    disk = MemoryDisk()
    config = LogConfig(index_interval_bytes=index_interval_bytes)
    log = Log.open(
        SegmentFiles.on(disk),
        FOLDER,
        TopicPartition("t", 0),
        config,
        OpenOptions(clean=True, wall_ms=1_000),
    )
    first = 45 - damaged  # the segment's; 45 is 0b101101, so that bits 0 and 2 lower it
    log.truncate_fully_and_start_at(first, wall_ms=1_000)
    for number in range(first, first + BATCHES):
        log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1_000)
    path = f"{FOLDER}/{first:020}.log"
    size = disk.file_size(path) // BATCHES
    disk.flip_bit(path, damaged * size + 7, bit=bit)
    log.truncate_to(45, wall_ms=1_000)
    assert (log.log_end_offset, disk.file_size(path)) == (45, damaged * size)
    log.append_as_leader(build_batch((b"again",)), leader_epoch=1, wall_ms=1_000)
    assert read_from(log, 45, 46, 10_000) == [(45, b"again")]


def _write_log(disk: MemoryDisk, first: int) -> tuple[str, int]:
    """Write a log of BATCHES records from offset ``first`` on; return its file and the size of a batch."""
    options = OpenOptions(clean=True, wall_ms=1_000)
    log = Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), LogConfig(), options)
    log.truncate_fully_and_start_at(first, wall_ms=1_000)
    for number in range(first, first + BATCHES):
        log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1_000)
    path = f"{FOLDER}/{first:020}.log"
    return path, disk.file_size(path) // BATCHES


def test_recovery_ends_the_log_before_a_base_offset_that_jumped_ahead() -> None:
    """The batch after it tells: it begins in the gap. Its replica fetches both again."""
    disk = MemoryDisk()
    path, size = _write_log(disk, 40)
    disk.flip_bit(path, 3 * size + 6, bit=4)  # 43 becomes 4139
    options = OpenOptions(clean=False, wall_ms=1_000)
    log = Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), LogConfig(), options)
    assert log.log_end_offset == 43
    assert [(damage.position, damage.offset) for damage in log.damages] == [(3 * size, 43)]
    assert read_from(log, 40, 43, 10_000) == [(number, b"%d" % number) for number in (40, 41, 42)]


def test_a_cut_ends_a_log_without_gaps_where_its_last_whole_batch_ends() -> None:
    """A base offset that jumped ahead hides where the log ends: its records are not there."""
    disk = MemoryDisk()
    path, size = _write_log(disk, 40)
    options = OpenOptions(clean=True, wall_ms=1_000, recovery_point=40 + BATCHES)
    log = Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), LogConfig(), options)
    disk.flip_bit(path, 3 * size + 6, bit=4)
    log.truncate_to(45, wall_ms=1_000)
    assert (log.log_end_offset, disk.file_size(path)) == (43, 3 * size)
