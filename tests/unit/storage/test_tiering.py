"""A log whose first records are in remote storage only: where it begins, across deletions, restarts and power
cuts; the segments it offers for copying; and a replica that begins above what is there."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest
from log_model import build_batch, read_from
from msgspec import structs

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage import names
from nilometer.storage.copying import StepKind, copy_slice, follow_log_start, next_step, start_again
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
from nilometer.storage.errors import CorruptRecordFound, LogFenced, OffsetInTier, OffsetOutOfRange
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import AppendOrigin, CorruptSnapshot, decode_snapshot
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.tiering import (
    IndexesOfBatches,
    SealedSegment,
    SideFiles,
    check_records,
    crc_at,
    is_unchanged,
    read_side_files,
    sealed_segments,
    telling_crc,
)
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import ErrorCode
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
FOLDER = "/data/t-0"
TIERED = LogConfig(
    segment_bytes=300,
    index_interval_bytes=100,
    retention_ms=-1,
    local_retention_ms=0,
    remote_storage_enable=True,
)
EPOCHS = ((0, 0), (1, 10), (2, 20))
LATE = 10_000_000
PRODUCER = 7


def open_manager(
    disk: MemoryDisk, config: LogConfig = TIERED, directories: Sequence[str] = ("/data",)
) -> LogManager:
    options = ManagerOptions(
        node_id=1,
        directories=directories,
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: config,
    )
    return LogManager.open(disk, options, wall_ms=1)


def write_checkpoints(manager: LogManager) -> None:
    for plan in manager.plan_checkpoints({}):
        assert plan.run()
        manager.note_checkpoint(plan)


def flush(log: Log) -> None:
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=1)


def written_log(manager: LogManager, config: LogConfig = TIERED) -> Log:
    """Thirty records in several segments and three epochs, of one idempotent producer, all durable."""
    log = manager.create(KEY, config, wall_ms=1, topic_id=uuid.UUID(int=7), sync=False)
    write_checkpoints(manager)
    for number in range(30):
        produce(log, number, epoch=number // 10)
    flush(log)
    write_checkpoints(manager)
    return log


def produce(log: Log, sequence: int, epoch: int = 2) -> int:
    records = build_batch((b"%d" % sequence,), producer=(PRODUCER, 0, sequence))
    return log.append_as_leader(records, leader_epoch=epoch, wall_ms=1_000).first_offset


def delete_local(log: Log) -> int:
    """Apply retention until nothing is due; return how many segments went."""
    before = len(log.segments)
    while removable := log.delete_old_segments(log.log_end_offset, LATE):
        for path in removable:
            log.files.disk.remove(path)
    return before - len(log.segments)


def deleted_log(manager: LogManager, tiered: int = 17) -> Log:
    log = written_log(manager)
    log.note_tiered(tiered)
    assert delete_local(log)
    return log


def values(log: Log, offset: int) -> list[bytes]:
    return [value for at, value in read_from(log, offset, log.log_end_offset) if at >= offset]


def texts(first: int, end: int = 30) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_only_segments_in_remote_storage_are_deleted_and_the_log_begins_where_it_began() -> None:
    log = written_log(open_manager(MemoryDisk()))
    assert delete_local(log) == 0
    log.note_tiered(17)
    bases = [segment.base_offset for segment in log.segments]
    assert delete_local(log) == len([base for base in bases[1:] if base <= 17])
    local_start = max(base for base in bases if base <= 17)
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, local_start, 30)
    assert log.epochs.entries == EPOCHS
    assert values(log, local_start) == texts(local_start)
    for offset in (0, local_start - 1):
        for only_cached in (True, False):
            with pytest.raises(OffsetInTier) as raised:
                log.read(offset, 100, 30, only_cached=only_cached)
            assert raised.value.code is ErrorCode.offset_moved_to_tiered_storage
            assert raised.value.local_start_offset == local_start
    log.advance_log_start_offset(5, 30)
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 100, 30)


def test_the_local_part_is_bounded_by_its_own_settings_or_else_by_those_of_the_whole_log() -> None:
    log = written_log(open_manager(MemoryDisk()))
    log.note_tiered(30)
    own = replace(TIERED, local_retention_ms=-2)
    log.configure(own)
    assert delete_local(log) == 0
    log.configure(replace(own, retention_ms=LATE))
    assert delete_local(log) == 0
    log.configure(replace(own, retention_bytes=log.size, local_retention_bytes=log.size - 300))
    assert delete_local(log) == 1
    log.configure(replace(own, retention_bytes=log.size - 300))
    assert delete_local(log) == 1
    log.configure(replace(own, retention_bytes=0, local_retention_bytes=-1))
    assert delete_local(log) == 0
    assert log.log_start_offset == 0


def test_without_copying_the_total_retention_moves_the_log_start() -> None:
    log = deleted_log(open_manager(MemoryDisk()))
    log.configure(replace(TIERED, remote_log_copy_disable=True))
    assert delete_local(log) == 0
    log.configure(replace(log.config, retention_ms=0))
    assert delete_local(log)
    assert log.log_start_offset == log.local_start_offset == 30


def test_a_topic_that_leaves_remote_storage_begins_with_its_first_segment() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = deleted_log(manager)
    local_start = log.local_start_offset
    log.configure(replace(TIERED, remote_storage_enable=False))
    assert delete_local(log) == 0
    assert log.log_start_offset == local_start
    assert log.epochs.entries[0] == (1, local_start)
    with pytest.raises(OffsetOutOfRange):
        log.read(local_start - 1, 100, 30)
    manager.close({}, broker_epoch=1, wall_ms=1)
    assert open_manager(disk).logs[KEY].log_start_offset == local_start


@pytest.mark.parametrize("end", ["close", "kill", "power cut"])
@pytest.mark.parametrize("has_line", [True, False], ids=["checkpointed", "not checkpointed"])
def test_a_restart_keeps_where_the_log_begins(end: str, has_line: bool) -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = deleted_log(manager)
    log.advance_log_start_offset(3, 30)
    local_start = log.local_start_offset
    if end == "close":
        manager.close({}, broker_epoch=1, wall_ms=1)
        disk.crash_process()
    else:
        flush(log)
        if has_line:
            write_checkpoints(manager)
        disk.crash_machine() if end == "power cut" else disk.crash_process()
    if not has_line:
        disk.replace_file("/data/" + names.LOG_START_OFFSET_CHECKPOINT, b"0\n0\n")
    again = open_manager(disk).logs[KEY]
    assert (again.log_start_offset, again.local_start_offset) == (3, local_start)
    assert again.epochs.entries == ((0, 3), *EPOCHS[1:])
    assert values(again, local_start) == texts(local_start)
    assert produce(again, 29) == 29, "a duplicate"
    assert produce(again, 30) == 30


def test_a_damaged_epoch_file_hides_nothing_that_is_in_remote_storage() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = deleted_log(manager)
    log.advance_log_start_offset(3, 30)
    write_checkpoints(manager)
    disk.crash_process()
    disk.replace_file(f"{FOLDER}/{names.LEADER_EPOCH_CHECKPOINT}", b"0\n9\n")
    again = open_manager(disk).logs[KEY]
    assert again.log_start_offset == 3
    assert again.epochs.entries == ((1, again.local_start_offset), (2, 20))


def lose_epochs(disk: MemoryDisk, folder: str) -> None:
    disk.crash_process()
    disk.replace_file(f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}", b"0\n9\n")


def test_epochs_that_were_lost_hide_nothing_at_any_later_start() -> None:
    disk = MemoryDisk()
    deleted_log(open_manager(disk))
    lose_epochs(disk, FOLDER)
    for _ in range(3):
        log = open_manager(disk).logs[KEY]
        assert log.epochs.entries == ((1, log.local_start_offset), (2, 20))
        assert log.log_start_offset == 0
        flush(log)
        disk.crash_process()


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_during_local_deletions_loses_no_offset(seed: int) -> None:
    for step in range(1, 30):
        disk = MemoryDisk(seed)
        manager = open_manager(disk)
        log = written_log(manager)
        log.note_tiered(17)
        disk.fail_from(step)
        try:
            delete_local(log)
        except (OSError, LogFenced):
            pass
        disk.crash_machine()
        disk.work_again()
        again = open_manager(disk).logs[KEY]
        assert again.log_start_offset == 0, f"step {step}"
        assert again.local_start_offset <= 17
        assert again.log_end_offset == 30
        assert values(again, again.local_start_offset) == texts(again.local_start_offset)


def test_a_truncation_below_the_local_start_begins_again_at_the_log_start() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = deleted_log(manager)
    log.advance_log_start_offset(3, 30)
    truncation = manager.truncate_to(log, 8, wall_ms=1)
    assert truncation.log_end_offset == log.log_start_offset == log.log_end_offset == 3
    assert not log.producers.producers, "of which only remote storage knows"
    manager.close({}, broker_epoch=1, wall_ms=1)
    again = open_manager(disk).logs[KEY]
    assert (again.log_start_offset, again.log_end_offset, again.begins_in_tier) == (3, 3, False)


def test_a_truncation_above_the_local_start_keeps_what_is_known() -> None:
    log = deleted_log(open_manager(MemoryDisk()))
    start = log.local_start_offset
    assert log.truncate_to(start, wall_ms=1).log_end_offset == start
    assert (log.log_start_offset, log.local_start_offset) == (0, start)
    assert log.epochs.entries == EPOCHS[:2]
    assert log.producers.producers[PRODUCER].last_sequence == start - 1


def test_records_that_replace_truncated_ones_are_not_taken_for_those_in_remote_storage() -> None:
    log = written_log(open_manager(MemoryDisk()))
    log.note_tiered(24)
    log.truncate_to(12, wall_ms=1)
    for number in range(12, 30):
        produce(log, number, epoch=3)
    delete_local(log)
    assert log.local_start_offset <= 12


def aborted_transaction(log: Log) -> None:
    begin_transaction(log)
    end_transaction(log)


def begin_transaction(log: Log) -> None:
    records = build_batch((b"a",), producer=(9, 0, 0), transactional=True)
    log.append_as_leader(records, leader_epoch=2, wall_ms=1)


def end_transaction(log: Log) -> None:
    marker = build_end_txn_marker(EndTxnMarker(ControlType.ABORT, 0, 1), producer_id=9, producer_epoch=0)
    log.append_as_leader(marker, leader_epoch=2, wall_ms=1, origin=AppendOrigin.COORDINATOR)


def checked_batches(log: Log, sealed: SealedSegment) -> list[BatchHeader]:
    return list(check_records(log, sealed, IndexesOfBatches(sealed)))


def side_files(log: Log, sealed: SealedSegment) -> SideFiles:
    indexes = IndexesOfBatches(sealed)
    assert list(check_records(log, sealed, indexes))
    return read_side_files(log.files.disk, sealed, indexes, wall_ms=1)


def test_the_sealed_segments_below_the_last_stable_offset_are_offered() -> None:
    log = written_log(open_manager(MemoryDisk()))
    bases = [segment.base_offset for segment in log.segments]
    offered = list(sealed_segments(log, 0, 30))
    assert [one.base_offset for one in offered] == bases[:-1]
    assert [one.end_offset for one in offered] == bases[1:]
    assert [one.base_offset for one in sealed_segments(log, bases[2], bases[4] - 1)] == [bases[2]]
    assert next(sealed_segments(log, bases[2] + 1, bases[3])).base_offset == bases[2]
    assert list(sealed_segments(log, bases[-1], 30)) == []
    across = next(one for one in offered if one.base_offset < 10 < one.end_offset)
    assert across.epochs == ((0, across.base_offset), (1, 10))
    assert offered[0].epochs == ((0, 0),)
    for one in offered:
        checked = checked_batches(log, one)
        assert sum(batch.size for batch in checked) == one.size == log.files.disk.file_size(one.log_path)
        assert crc_at(log, one.end_offset - 1) == telling_crc(log, checked[-1]) == checked[-1].crc


def test_what_compaction_may_have_rewritten_has_no_crc_that_tells() -> None:
    log = written_log(open_manager(MemoryDisk()))
    one = next(sealed_segments(log, 0, 30))
    last = checked_batches(log, one)[-1]
    assert telling_crc(log, structs.replace(last, records_count=last.records_count - 1)) is None
    log.allow_gaps()
    assert telling_crc(log, last) is None
    assert crc_at(log, one.end_offset - 1) is None


def test_a_segment_has_the_producers_at_its_end_and_its_aborted_transactions() -> None:
    disk = MemoryDisk()
    log = written_log(open_manager(disk))
    aborted_transaction(log)
    log.roll_now(1)
    *_, before, last = sealed_segments(log, 0, 32)
    side = side_files(log, last)
    assert side.transaction_index == AbortedTxn(9, 30, 31, 32).encode()
    assert {one.producer_id: one.last_offset for one in decode_snapshot(side.producers)} == {
        PRODUCER: 29,
        9: 30,
    }
    earlier = side_files(log, before)
    assert earlier.transaction_index == b""
    assert decode_snapshot(earlier.producers)[-1].last_offset == before.end_offset - 1
    assert earlier.offset_index == disk.read_file(before.log_path.replace(".log", ".index"))
    assert earlier.time_index == disk.read_file(before.log_path.replace(".log", ".timeindex"))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_damage_of_an_index_does_not_get_into_its_copies(suffix: str) -> None:
    disk = MemoryDisk()
    log = written_log(open_manager(disk))
    one = next(sealed_segments(log, 0, 30))
    path = one.log_path.replace(".log", suffix)
    whole = side_files(log, one)
    assert disk.read_file(path) in (whole.offset_index, whole.time_index)
    disk.flip_bit(path, 3)
    assert side_files(log, one) == whole
    disk.open(path).truncate(disk.file_size(path) - 1)
    assert side_files(log, one) == whole


@pytest.mark.parametrize("damage", ["none of them", "no valid one"])
def test_a_lost_snapshot_is_made_again_from_an_earlier_one(damage: str) -> None:
    disk = MemoryDisk()
    log = written_log(open_manager(disk))
    offered = list(sealed_segments(log, 0, 30))
    expected = [side_files(log, one).producers for one in offered]
    for offset in log.producers.snapshot_offsets[3:]:
        path = log.producers.snapshot_path(offset)
        disk.remove(path) if damage == "none of them" else disk.flip_bit(path, 30)
    assert [side_files(log, one).producers for one in offered] == expected


def test_a_damaged_batch_is_not_offered_as_good() -> None:
    disk = MemoryDisk()
    log = written_log(open_manager(disk))
    first, second, *_ = sealed_segments(log, 0, 30)
    disk.flip_bit(first.log_path, first.size - 2)
    with pytest.raises(CorruptRecordFound) as raised:
        checked_batches(log, first)
    assert raised.value.offset == first.end_offset - 1
    disk.open(second.log_path).truncate(second.size - 5)
    with pytest.raises(CorruptRecordFound):
        checked_batches(log, second)


def test_a_segment_that_was_deleted_or_may_have_other_records_has_changed() -> None:
    log = written_log(open_manager(MemoryDisk()))
    first, *_, last = sealed_segments(log, 0, 30)
    assert is_unchanged(log, first)
    log.advance_log_start_offset(first.end_offset, 30)
    delete_local(log)
    assert not is_unchanged(log, first)
    assert is_unchanged(log, last)
    log.truncate_to(29, wall_ms=1)
    assert not is_unchanged(log, last)


def test_a_replica_begins_above_what_is_in_remote_storage() -> None:
    leader = deleted_log(open_manager(MemoryDisk()))
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = manager.create(KEY, TIERED, wall_ms=1, topic_id=uuid.UUID(int=7))
    begin_as(manager, log, leader)
    begin = leader.local_start_offset
    assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (2, begin, begin)
    assert log.epochs.entries == ((0, 2), (1, 10))
    with pytest.raises(OffsetInTier):
        log.read(2, 100, 30)
    write_checkpoints(manager)
    follow(log, leader)
    assert log.epochs.entries == ((0, 2), *EPOCHS[1:])
    assert values(log, begin) == texts(begin)
    assert produce(log, 29) == 29, "a duplicate"
    manager.close({}, broker_epoch=1, wall_ms=1)
    again = open_manager(disk).logs[KEY]
    assert (again.log_start_offset, again.local_start_offset) == (2, begin)
    assert produce(again, begin - 1 if begin > 25 else 29) < 30


def begin_as(manager: LogManager, log: Log, leader: Log) -> None:
    begin = leader.local_start_offset
    snapshot = leader.files.disk.read_file(leader.producers.snapshot_path(begin))
    truncation = manager.start_in_tier(
        log, begin, log_start_offset=2, epochs=leader.epochs.entries, producers=snapshot, wall_ms=1
    )
    assert truncation.log_end_offset == begin


def follow(log: Log, leader: Log) -> None:
    while (found := leader.read(log.log_end_offset, 400, 30)) is not None and found.records:
        log.append_as_follower(found.records, wall_ms=1)


def test_a_damaged_snapshot_changes_nothing() -> None:
    manager = open_manager(MemoryDisk())
    log = written_log(manager)
    with pytest.raises(CorruptSnapshot):
        manager.start_in_tier(log, 40, log_start_offset=0, epochs=EPOCHS, producers=b"?", wall_ms=1)
    assert values(log, 0) == texts(0)


def test_a_file_of_the_log_start_is_named_for_removal_once() -> None:
    """The first segment that goes, and an empty one that takes its place for a moment, have one name."""
    manager = open_manager(MemoryDisk())
    log, leader = written_log(manager), deleted_log(open_manager(MemoryDisk()))
    begin = leader.local_start_offset
    snapshot = leader.files.disk.read_file(leader.producers.snapshot_path(begin))
    removable = manager.start_in_tier(
        log, begin, log_start_offset=0, epochs=leader.epochs.entries, producers=snapshot, wall_ms=1
    ).removable
    assert len(removable) == len(set(removable))


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_while_a_replica_begins_leaves_all_or_an_empty_log(seed: int) -> None:
    leader = deleted_log(open_manager(MemoryDisk()))
    outcomes: set[tuple[int, bool]] = set()
    for step in range(1, 70):
        disk = MemoryDisk(seed)
        manager = open_manager(disk)
        log = written_log(manager)
        disk.fail_from(step)
        try:
            begin_as(manager, log, leader)
        except (OSError, LogFenced):
            pass
        disk.crash_machine()
        disk.work_again()
        try:
            again = open_manager(disk).logs[KEY]
        except NoLogDirectory:
            raise AssertionError(f"step {step}") from None
        end, begin = again.log_end_offset, leader.local_start_offset
        if again.begins_in_tier and end > 2:
            assert (again.log_start_offset, again.local_start_offset, end) == (2, begin, begin)
            assert again.epochs.entries == ((0, 2), (1, 10))
            assert again.producers.producers[PRODUCER].last_sequence == begin - 1
        else:
            assert end <= 30
            assert values(again, again.log_start_offset) == texts(again.log_start_offset, end)
        outcomes.add((end, again.begins_in_tier))
    assert outcomes >= {(2, False), (30, False), (leader.local_start_offset, True)}


def test_a_copy_knows_the_transactions_that_began_in_remote_storage() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk, directories=("/data", "/other"))
    log = written_log(manager)
    begin_transaction(log)
    log.roll_now(1)
    end_transaction(log)
    log.roll_now(1)
    log.note_tiered(31)
    flush(log)
    assert delete_local(log)
    assert log.local_start_offset == 31
    target = next(each.path for each in manager.directories if each.path != manager.directory_of(KEY))
    plan = manager.plan_future(KEY, target, wall_ms=1)
    copy = manager.add_future(plan, plan.make()).log
    write_checkpoints(manager)
    while (step := next_step(log, copy)).kind is not StepKind.NOTHING:
        if step.kind is StepKind.START_AGAIN:
            start_again(log, copy, step.offset, wall_ms=1)
        copy_slice(log, copy, 500, truncations=log.truncations, wall_ms=1)
    assert copy.aborted_transactions(31, 32) == log.aborted_transactions(31, 32) != []


@pytest.mark.parametrize("are_epochs_lost", [False, True], ids=["", "epochs lost"])
def test_a_move_to_another_directory_keeps_where_the_log_begins(are_epochs_lost: bool) -> None:
    disk = MemoryDisk()
    manager = open_manager(disk, directories=("/data", "/other"))
    log = deleted_log(manager)
    if are_epochs_lost:
        lose_epochs(disk, log.folder)
        manager = open_manager(disk, directories=("/data", "/other"))
        log = manager.logs[KEY]
    local_start = log.local_start_offset
    target = next(each.path for each in manager.directories if each.path != manager.directory_of(KEY))
    plan = manager.plan_future(KEY, target, wall_ms=1)
    second = manager.add_future(plan, plan.make())
    write_checkpoints(manager)
    while (step := next_step(log, second.log)).kind is not StepKind.NOTHING:
        if step.kind is StepKind.START_AGAIN:
            start_again(log, second.log, step.offset, wall_ms=1)
        copy_slice(log, second.log, 500, truncations=log.truncations, wall_ms=1)
        follow_log_start(second.log, log.local_start_offset, wall_ms=1)
    second.note_progress()
    manager.replace_by_future(KEY)
    assert (log.log_start_offset, log.local_start_offset) == (0, local_start)
    flush(log)
    disk.remove_tree(manager.remove_second(KEY) or "")
    write_checkpoints(manager)
    disk.crash_machine()
    again = open_manager(disk, directories=("/data", "/other")).logs[KEY]
    assert again.folder.startswith(target)
    assert (again.log_start_offset, again.local_start_offset) == (0, local_start)
    assert again.epochs.entries == (((1, local_start), (2, 20)) if are_epochs_lost else EPOCHS)
    assert values(again, local_start) == texts(local_start)
