"""A gap in a log: compaction left it, or records were lost. The folder's marker tells, no policy."""

from __future__ import annotations

import dataclasses
import random

import pytest
from log_model import build_batch, read_from

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage import names
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.errors import CorruptRecordFound
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import DamageKind, OpenOptions
from nilometer.storage.segments.segment_files import SegmentFiles
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.record_batch import batches
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
FOLDER = "/data/t-0"
DELETED = LogConfig(segment_bytes=400, index_interval_bytes=100)
COMPACTED = dataclasses.replace(DELETED, is_compacted=True, is_deleted_by_retention=False)
END = 20


def open_log(disk: MemoryDisk, config: LogConfig, recovery_point: int = 0, log_start: int = 0) -> Log:
    disk.crash_process()
    options = OpenOptions(clean=False, wall_ms=1, recovery_point=recovery_point, log_start_offset=log_start)
    return Log.open(SegmentFiles.on(disk), FOLDER, KEY, config, options)


def write_log_with_gap(disk: MemoryDisk, config: LogConfig = DELETED) -> tuple[int, int]:
    """Twenty records in several segments, the last batches of the second one gone; returns the gap."""
    log = open_log(disk, config)
    for number in range(END):
        log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1)
    assert len(log.segments) >= 4
    _, second, third, *_ = log.segments
    data = disk.read_file(second.log_path)
    position, header = [(position, header) for position, header in batches(data)][1]
    disk.open(second.log_path).truncate(position)
    for folder in ("/", "/data"):
        disk.sync_directory(folder)
    return header.base_offset, third.base_offset


def kept(first: int, last: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in range(first, last)]


def records(log: Log) -> list[tuple[int, bytes]]:
    return read_from(log, log.log_start_offset, log.log_end_offset)


@pytest.mark.parametrize("policy", [DELETED, COMPACTED])
def test_a_log_that_compaction_came_through_keeps_what_lies_behind_a_gap(policy: LogConfig) -> None:
    """Whatever the policy is now."""
    disk = MemoryDisk()
    lost_from, found_from = write_log_with_gap(disk)
    disk.open(f"{FOLDER}/{names.GAPS_MARKER}", create=True).close()
    log = open_log(disk, policy)
    assert log.resolve_gap(wall_ms=1) is None
    assert log.damages == ()
    assert records(log) == kept(0, lost_from) + kept(found_from, END)
    assert log.is_in_order
    log.append_as_leader(build_batch((b"20",)), leader_epoch=0, wall_ms=1)
    assert records(log)[-1] == (END, b"20")


def test_a_read_goes_on_over_a_gap_that_more_than_one_batch_follows() -> None:
    """The last batch in the buffer may be torn or damaged: the next read begins there, and looks closely."""
    disk = MemoryDisk()
    log = open_log(disk, LogConfig())
    for number in range(4):
        log.append_as_leader(build_batch((b"%d" % number,)), leader_epoch=0, wall_ms=1)
    path = log.segments.active.log_path
    data = disk.read_file(path)
    (_, (second, _), (third, _), _) = batches(data)
    file = disk.open(path)
    file.truncate(second)
    file.append([data[third:]])
    disk.open(f"{FOLDER}/{names.GAPS_MARKER}", create=True).close()
    log = open_log(disk, LogConfig())
    found = log.read(0, len(data), log.log_end_offset)
    assert found is not None
    assert [header.base_offset for _, header in batches(found.records)] == [0, 2, 3]


@pytest.mark.parametrize("policy", [DELETED, COMPACTED])
def test_a_log_that_compaction_never_came_through_ends_before_a_gap(policy: LogConfig) -> None:
    """Whatever the policy is now."""
    disk = MemoryDisk()
    lost_from, found_from = write_log_with_gap(disk)
    log = open_log(disk, policy)
    damage = log.resolve_gap(wall_ms=1)
    assert damage is not None
    assert log.damages == (damage,)
    assert (damage.offset, damage.kind) == (lost_from, DamageKind.DAMAGED)
    assert all(disk.exists(path) for path in damage.evidence)
    assert any(path.endswith(f"{found_from:020}.log.corrupt") for path in damage.evidence)
    assert log.log_end_offset == lost_from
    assert records(log) == kept(0, lost_from)
    assert log.recovery_point <= lost_from
    assert log.resolve_gap(wall_ms=1) is None, "it is decided once"
    log.append_as_leader(build_batch((b"again",)), leader_epoch=1, wall_ms=1)
    assert records(log) == [*kept(0, lost_from), (lost_from, b"again")]
    assert log.epochs.entries[-1] == (1, lost_from)


def test_a_gap_that_no_compaction_left_is_damage_to_a_reader() -> None:
    """Below the recovery point, where no start looks."""
    disk = MemoryDisk()
    lost_from, found_from = write_log_with_gap(disk)
    log = open_log(disk, DELETED, recovery_point=END)
    assert log.gap is None
    assert read_from(log, 0, lost_from) == kept(0, lost_from)
    with pytest.raises(CorruptRecordFound) as found:
        log.read(lost_from, 1000, END)
    assert found.value.offset == lost_from
    log.allow_gaps()
    assert records(log) == kept(0, lost_from) + kept(found_from, END)


def test_a_follower_marks_a_gap_that_it_copies_before_it_writes_it() -> None:
    disk = MemoryDisk()
    log = open_log(disk, DELETED)
    log.append_as_follower(build_batch((b"0",), base_offset=0, epoch=0), wall_ms=1)
    assert not log.may_have_gaps
    log.append_as_follower(build_batch((b"5",), base_offset=5, epoch=0), wall_ms=1)
    assert log.may_have_gaps
    again = open_log(disk, DELETED)
    assert again.may_have_gaps
    assert records(again) == [(0, b"0"), (5, b"5")]


def test_a_line_of_a_cleaner_marks_the_log() -> None:
    """As Kafka leaves it: the line is all that tells."""
    disk = MemoryDisk()
    write_log_with_gap(disk)
    options = OpenOptions(clean=False, wall_ms=1, cleaned_offset=END)
    disk.crash_process()
    log = Log.open(SegmentFiles.on(disk), FOLDER, KEY, DELETED, options)
    assert log.gap is None
    assert log.cleaned_offset == END
    assert open_log(disk, DELETED).may_have_gaps, "and stays when the line goes"


def test_a_gap_below_the_recovery_point_or_the_log_start_is_no_loss() -> None:
    disk = MemoryDisk()
    lost_from, found_from = write_log_with_gap(disk)
    assert open_log(disk, DELETED, recovery_point=lost_from).gap is not None
    assert open_log(disk, DELETED, recovery_point=lost_from + 1).gap is None
    assert open_log(disk, DELETED, log_start=found_from - 1).gap is not None
    assert open_log(disk, DELETED, log_start=found_from).gap is None


def test_a_log_directory_with_an_undecided_gap_is_not_closed_as_one_in_order() -> None:
    """Or the next start would take the gap for one that was judged."""
    disk = MemoryDisk()
    lost_from, _ = write_log_with_gap(disk)
    for _ in range(2):
        manager = open_manager(disk)
        assert manager.has_gaps
        assert manager.close({}, broker_epoch=5, wall_ms=1) == []
        assert log_directory.read_broker_epoch(disk, f"/data/{names.CLEAN_SHUTDOWN}") is None
    manager = open_manager(disk)
    log = manager.logs[KEY]
    assert manager.resolve_gap(log, wall_ms=1) is not None
    assert not manager.has_gaps
    assert manager.close({}, broker_epoch=5, wall_ms=1) == []
    again = open_manager(disk)
    assert again.previous_broker_epoch == 5
    assert records(again.logs[KEY]) == kept(0, lost_from)


def open_manager(disk: MemoryDisk) -> LogManager:
    disk.crash_process()
    options = ManagerOptions(
        node_id=1,
        directories=["/data"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: DELETED,
    )
    return LogManager.open(disk, options, wall_ms=1)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_failure_after_the_cut_brings_back_no_record_behind_the_gap(seed: int) -> None:
    """What is appended and synced after the cut is there; what was cut is not mixed into it."""
    disk = MemoryDisk(seed)
    lost_from, _ = write_log_with_gap(disk)
    manager = open_manager(disk)
    log = manager.logs[KEY]
    manager.resolve_gap(log, wall_ms=1)
    log.accept_appends()
    log.append_as_leader(build_batch((b"again",)), leader_epoch=1, wall_ms=1)
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=1)
    disk.crash_machine(seed)
    again = open_manager(disk).logs[KEY]
    again.resolve_gap(wall_ms=1)
    assert records(again) == [*kept(0, lost_from), (lost_from, b"again")]
