"""A log on the operating system's own files: append, restart in order and in disorder, read back."""

from __future__ import annotations

import os
import random
import uuid
from pathlib import Path

import pytest

from nilometer.runtime import LockHeld
from nilometer.runtime.runtime import SeededEntropy
from nilometer.runtime.system_disk import SystemDisk
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.records import BatchBuilder

KEY = TopicPartition("my-topic-with-dashes", 3)
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=500)


def options(path: Path, node_id: int = 1) -> ManagerOptions:
    return ManagerOptions(
        node_id=node_id,
        directories=[str(path)],
        entropy=SeededEntropy(random.Random(7)),
        config_for=lambda _: CONFIG,
    )


def batch(first: int, count: int = 3) -> bytes:
    builder = BatchBuilder()
    for number in range(first, first + count):
        builder.append(1_000 + number, b"key", b"value %d" % number)
    return builder.build(producer_id=7, producer_epoch=0, base_sequence=first)


def read_all(log, upper: int) -> list[int]:
    from nilometer.wire.record_batch import batches
    from nilometer.wire.records import decode_records

    values: list[int] = []
    offset = log.log_start_offset
    while (part := log.read(offset, 1000, upper)).records:
        for position, header in batches(part.records):
            values += [
                int(record.value.split()[1]) for record in decode_records(part.records, position, header)
            ]
        offset = part.next_offset
    return values


@pytest.mark.parametrize("orderly", [True, False])
def test_everything_is_there_after_a_restart(tmp_path: Path, orderly: bool) -> None:
    disk = SystemDisk()
    manager = LogManager.open(disk, options(tmp_path), wall_ms=1)
    topic_id = uuid.UUID(int=42)
    log = manager.create(KEY, CONFIG, wall_ms=1, topic_id=topic_id)
    for number in range(0, 300, 3):
        log.append_as_leader(batch(number), leader_epoch=0 if number < 150 else 2, wall_ms=1000)
    assert len(log.segments) > 2
    if orderly:
        assert manager.close({KEY: 290}, broker_epoch=9, wall_ms=1) == []
    else:
        manager.abandon()

    manager = LogManager.open(disk, options(tmp_path), wall_ms=1)
    log = manager.logs[KEY]
    assert log.log_end_offset == 300
    assert read_all(log, 300) == list(range(300))
    assert log.epochs.entries == ((0, 0), (2, 150))
    assert log.topic_id == topic_id
    assert manager.previous_broker_epoch == (9 if orderly else None)
    assert manager.initial_high_watermark(KEY) == (290 if orderly else 0)
    assert log.damages == ()
    again = log.append_as_leader(batch(297), leader_epoch=2, wall_ms=1000)
    assert again.duplicate
    assert (again.first_offset, again.last_offset) == (297, 299)
    manager.abandon()


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    manager = LogManager.open(SystemDisk(), options(tmp_path), wall_ms=1)
    with pytest.raises(LockHeld):
        manager.directories[0].lock()
    manager.abandon()


def test_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    LogManager.open(SystemDisk(), options(tmp_path), wall_ms=1).abandon()
    with pytest.raises(CorruptCheckpoint, match="belongs to node 1"):
        LogManager.open(SystemDisk(), options(tmp_path, node_id=2), wall_ms=1)


def test_a_deleted_log_is_renamed_then_removed(tmp_path: Path) -> None:
    disk = SystemDisk()
    manager = LogManager.open(disk, options(tmp_path), wall_ms=1)
    manager.create(KEY, CONFIG, wall_ms=1)
    folder = manager.delete(KEY)
    assert folder is not None
    assert folder.endswith("-delete")
    manager.abandon()
    manager = LogManager.open(disk, options(tmp_path), wall_ms=1)
    assert manager.logs == {}
    assert manager.removable_folders == [folder]
    manager.abandon()


def test_a_replacement_that_another_one_overtakes_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = SystemDisk(), str(tmp_path / "checkpoint")
    fsync, overtaken = os.fsync, [False]

    def fsync_and_be_overtaken(descriptor: int) -> None:
        if not overtaken[0]:
            overtaken[0] = True
            disk.replace_file(path, b"overtakes")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_and_be_overtaken)
    disk.replace_file(path, b"was first")
    assert disk.read_file(path) == b"was first"
    assert os.listdir(tmp_path) == ["checkpoint"]
