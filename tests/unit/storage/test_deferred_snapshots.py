"""A snapshot of many producers is not written where a segment is rolled, but by the next flush."""

from __future__ import annotations

from log_model import build_batch

from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import SNAPSHOT_AT_ONCE, Producers, ProducerStateEntry
from nilometer.storage.recovery import OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

FOLDER = "/data/t-0"
MANY = SNAPSHOT_AT_ONCE + 1


def open_log(disk: MemoryDisk, recovery_point: int = 0) -> Log:
    disk.crash_process()
    options = OpenOptions(clean=False, wall_ms=1_000, recovery_point=recovery_point)
    return Log.open(SegmentFiles.on(disk), FOLDER, TopicPartition("t", 0), LogConfig(), options)


def produce(log: Log, producer_id: int) -> None:
    records = build_batch((b"v",), producer=(producer_id, 0, 0))
    log.append_as_leader(records, leader_epoch=0, wall_ms=1_000)


def rolled_log(disk: MemoryDisk, producers: int = MANY) -> Log:
    log = open_log(disk)
    for producer_id in range(producers):
        produce(log, producer_id)
    log.roll_now(1_000)
    return log


def snapshots(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list_directory(FOLDER) if ".snapshot" in name]


def test_few_producers_are_written_at_once() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk, SNAPSHOT_AT_ONCE)
    assert snapshots(disk) == ["00000000000000002000.snapshot"]
    assert log.flush_plan().snapshot is None


def test_many_producers_are_written_by_the_next_flush() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    produce(log, MANY)
    assert snapshots(disk) == []
    plan = log.flush_plan()
    plan.run()
    assert snapshots(disk) == ["00000000000000002001.snapshot.tmp"]
    log.mark_flushed(plan, wall_ms=1_000)
    assert snapshots(disk) == ["00000000000000002001.snapshot"]
    assert log.flush_plan().snapshot is None
    again = open_log(disk, log.recovery_point)
    assert sorted(again.producers.producers) == list(range(MANY + 1))
    assert again.producers.snapshot_offsets == (MANY,)


def test_a_snapshot_that_a_crash_left_under_its_temporary_name_is_made_again_from_the_log() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    log.flush_plan().run()
    again = open_log(disk)
    assert snapshots(disk) == ["00000000000000002001.snapshot"], "recovery writes that of each segment"
    assert sorted(again.producers.producers) == list(range(MANY))


def test_a_truncation_meanwhile_leaves_no_snapshot_above_the_end() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    produce(log, MANY)
    plan = log.flush_plan()
    plan.run()
    log.truncate_to(10, wall_ms=1_000)
    log.mark_flushed(plan, wall_ms=1_000)
    assert snapshots(disk) == []
    assert log.producers.snapshot_offsets == ()
    assert sorted(log.producers.producers) == list(range(10))


def test_a_newer_roll_meanwhile_keeps_both() -> None:
    disk = MemoryDisk()
    log = rolled_log(disk)
    plan = log.flush_plan()
    plan.run()
    produce(log, MANY)
    log.roll_now(1_000)
    log.mark_flushed(plan, wall_ms=1_000)
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=1_000)
    assert log.producers.snapshot_offsets == (MANY, MANY + 1)


def test_the_ids_that_clients_choose_do_not_decide_where_producers_are_kept() -> None:
    """In a dictionary by id, ids with the same remainders make one insertion take seconds."""
    producers, ids = Producers(), [0, 7, 2**62, -1]
    for producer_id in ids:
        producers[producer_id] = ProducerStateEntry(producer_id)
    assert list(producers) == ids
    assert set(ids).isdisjoint(producers._entries)
    assert [producers[one].producer_id for one in ids] == ids
    del producers[7]
    assert 7 not in producers and producers.get(7) is None and len(producers) == 3
