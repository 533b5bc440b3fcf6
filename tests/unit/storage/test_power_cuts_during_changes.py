"""The order in which changes of a log reach the disk: what a power cut between two of them must not leave."""

from __future__ import annotations

import posixpath
import random
import uuid

import pytest
from log_model import build_batch

from nilometer.runtime.runtime import SeededEntropy
from nilometer.simulation.disk import FileNode, FolderNode
from nilometer.storage import names
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, make_folders_durable
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.record_validation import AppendOrigin
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import KafkaError
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
FOLDER = f"/data/{KEY}"
CONFIG = LogConfig(segment_bytes=300)
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


def open_manager(disk: MemoryDisk) -> LogManager:
    disk.crash_process()
    options = ManagerOptions(
        node_id=1,
        directories=["/data"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: CONFIG,
    )
    return LogManager.open(disk, options, wall_ms=1)


def checkpoint(manager: LogManager) -> None:
    for plan in manager.plan_checkpoints({key: log.log_end_offset for key, log in manager.logs.items()}):
        assert plan.run()
        manager.note_checkpoint(plan)


def append(log: Log, count: int, epoch: int = 0) -> None:
    for _ in range(count):
        log.append_as_leader(build_batch((b"v" * 20,)), leader_epoch=epoch, wall_ms=1)


def flush(log: Log) -> None:
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=1)


def node_at(disk: MemoryDisk, path: str) -> FileNode | FolderNode:
    node: FileNode | FolderNode = disk.root
    for name in path.strip("/").split("/"):
        assert isinstance(node, FolderNode)
        node = node.entries[name]
    return node


def is_durable(disk: MemoryDisk, path: str) -> bool:
    """Whether a power cut leaves the file as it is: its content and its name."""
    folder, name = posixpath.split(path)
    file, parent = node_at(disk, path), node_at(disk, folder)
    assert isinstance(file, FileNode)
    assert isinstance(parent, FolderNode)
    return file.durable() == bytes(file.data) and parent.durable(name) is file


@pytest.mark.parametrize("is_planned", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_a_recreated_topic_never_has_the_log_start_offset_of_the_deleted_one(
    seed: int, is_planned: bool
) -> None:
    """The power fails after each operation of the creation."""
    for operations in range(1, 20):
        disk = MemoryDisk(seed)
        manager = open_manager(disk)
        log = manager.create(KEY, CONFIG, topic_id=FIRST, wall_ms=1)
        append(log, 3)
        flush(log)
        log.advance_log_start_offset(2, 3)
        checkpoint(manager)
        folder = manager.delete(KEY)
        assert folder is not None
        disk.sync_directory("/data")
        disk.fail_from(operations)
        try:
            if is_planned:
                make_folders_durable(manager.plan_folders([(KEY, SECOND)]))
            else:
                manager.create(KEY, CONFIG, topic_id=SECOND, wall_ms=1)
        except OSError:
            pass
        disk.work_again()
        disk.crash_machine(seed * 100 + operations)
        again = open_manager(disk)
        found = again.get(KEY)
        if found is not None and found.topic_id == SECOND:
            assert (found.log_start_offset, found.log_end_offset) == (0, 0), operations


def test_a_truncated_log_accepts_no_append_before_the_truncation_is_durable() -> None:
    """Else a power cut could leave removed records below new ones, in a replica that counts as in sync."""
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = manager.create(KEY, CONFIG, topic_id=FIRST, wall_ms=1)
    append(log, 3)
    manager.truncate_to(log, 2, wall_ms=1)
    path = log.segments.active.log_path
    assert log.awaits_checkpoint
    assert not is_durable(disk, path)
    with pytest.raises(KafkaError, match="truncated"):
        append(log, 1)
    checkpoint(manager)
    assert is_durable(disk, path)
    append(log, 1, epoch=1)
    manager.truncate_to(log, log.log_end_offset, wall_ms=1)
    assert not log.awaits_checkpoint, "nothing was removed"


def test_whole_segments_are_removed_durably_before_the_one_below_is_shortened() -> None:
    """Else a power cut leaves a hole below the recovery point, where recovery does not look for one."""
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = manager.create(KEY, CONFIG, topic_id=FIRST, wall_ms=1)
    append(log, 8)
    flush(log)
    checkpoint(manager)
    first, *later = log.segments
    assert len(later) > 1
    seen: list[object] = []

    def look(number: int, verb: str, path: str) -> None:
        if verb == "truncate" and path == first.log_path:
            folder = node_at(disk, FOLDER)
            assert isinstance(folder, FolderNode)
            seen.extend(folder.durable(posixpath.basename(each.log_path)) for each in later)

    disk.fails = look
    manager.truncate_to(log, 1, wall_ms=1)
    assert seen == [None] * len(later)


def test_what_recovery_cuts_off_is_gone_durably() -> None:
    """Else the next power cut could bring it back, after records that were appended meanwhile."""
    disk = MemoryDisk()
    manager = open_manager(disk)
    log = manager.create(KEY, CONFIG, topic_id=FIRST, wall_ms=1)
    append(log, 1)
    file = disk.open(log.segments.active.log_path)
    file.append([build_batch((b"torn",), base_offset=1)[:-3]])
    file.sync()
    flush(log)
    again = open_manager(disk).logs[KEY]
    assert [damage.offset for damage in again.damages] == [1]
    assert is_durable(disk, posixpath.join(FOLDER, names.offset_name(0, names.LOG_SUFFIX)))


@pytest.mark.parametrize("is_truncated", [False, True])
def test_an_aborted_transaction_stays_aborted_if_its_segment_ends_after_the_checkpoint(
    is_truncated: bool,
) -> None:
    """Its entry in the transaction index is not durable, and the recovery point is in the next segment."""
    for seed in range(30):
        disk = MemoryDisk(seed)
        manager = open_manager(disk)
        log = manager.create(KEY, CONFIG, wall_ms=1, topic_id=FIRST)
        for sequence in range(1 + is_truncated):
            batch = build_batch((b"v",), producer=(7, 0, sequence), transactional=True)
            log.append_as_leader(batch, leader_epoch=0, wall_ms=1)
            end = EndTxnMarker(ControlType.ABORT, 0, 1_000)
            marker = build_end_txn_marker(end, producer_id=7, producer_epoch=0)
            log.append_as_leader(marker, leader_epoch=0, wall_ms=1, origin=AppendOrigin.COORDINATOR)
        if is_truncated:
            manager.truncate_to(log, 2, wall_ms=1)
            checkpoint(manager)
        flush(log)
        checkpoint(manager)
        log.append_as_leader(build_batch((b"v" * 200,)), leader_epoch=0, wall_ms=1)
        assert log.segments.active.base_offset == 2
        disk.crash_machine()
        again = open_manager(disk).logs[KEY]
        assert [(each.first_offset, each.last_offset) for each in again.aborted_transactions(0, 9)] == [
            (0, 1)
        ]
