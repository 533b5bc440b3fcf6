"""A directory comes back with folders of partitions that got others meanwhile: one counts, none is lost."""

from __future__ import annotations

import random
import uuid

import pytest
from log_model import build_batch, read_from

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.directories import log_directory
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
CONFIG = LogConfig()
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def open_manager(disk: MemoryDisk, *directories: str) -> LogManager:
    disk.crash_process()
    options = ManagerOptions(
        node_id=1,
        directories=directories or ("/one", "/two"),
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: CONFIG,
    )
    return LogManager.open(disk, options, wall_ms=1)


def write(
    disk: MemoryDisk, directory: str, topic_id: uuid.UUID, values: list[bytes], *, epoch: int = 0
) -> None:
    """A folder of the partition, made while no other directory could be used."""
    manager = open_manager(disk, directory)
    log = manager.create(KEY, CONFIG, wall_ms=1, topic_id=topic_id)
    for value in values:
        log.append_as_leader(build_batch((value,)), leader_epoch=epoch, wall_ms=1)
    assert manager.close({KEY: len(values)}, broker_epoch=3, wall_ms=1) == []


def values_of(manager: LogManager) -> int:
    return len(read_from(manager.logs[KEY], 0, 100))


@pytest.mark.parametrize("stale", ["/one", "/two"], ids=["found-first", "found-last"])
def test_the_folder_of_an_earlier_topic_is_renamed(stale: str) -> None:
    disk = MemoryDisk()
    current = "/two" if stale == "/one" else "/one"
    write(disk, stale, OLD, [b"old"] * 5, epoch=9)
    write(disk, current, NEW, [b"new"] * 2)
    manager = open_manager(disk)
    settled = manager.resolve_duplicates(lambda _: NEW, wall_ms=1)
    (one,) = settled.stale_folders
    assert (one.folder, one.kept, one.topic_id) == (f"{stale}/t-0", f"{current}/t-0", OLD)
    assert "stale copy" in str(one)
    assert settled.failures == {}
    assert (manager.directory_of(KEY), values_of(manager)) == (current, 2)
    assert manager.initial_high_watermark(KEY) == 2
    assert not disk.exists(f"{stale}/t-0")
    assert disk.exists(f"{one.renamed_to}/00000000000000000000.log"), "kept, and never served"
    assert manager.close({KEY: 2}, broker_epoch=4, wall_ms=1) == []
    manager = open_manager(disk)
    assert not manager.duplicates
    assert values_of(manager) == 2


def test_of_two_copies_of_one_topic_the_one_written_last_is_kept() -> None:
    disk = MemoryDisk()
    write(disk, "/one", NEW, [b"stale"] * 5, epoch=1)
    write(disk, "/two", NEW, [b"moved back"] * 3, epoch=2)
    manager = open_manager(disk)
    settled = manager.resolve_duplicates(lambda _: NEW, wall_ms=1)
    assert [one.folder for one in settled.stale_folders] == ["/one/t-0"]
    assert values_of(manager) == 3


@pytest.mark.parametrize("epoch", [1, 2])
def test_of_two_copies_that_end_alike_the_one_without_a_gap_is_kept(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """A power cut has left the last segment of a copy, perhaps in a later epoch, and not the one before."""
    monkeypatch.setitem(globals(), "CONFIG", LogConfig(segment_bytes=80))
    disk = MemoryDisk()
    for directory in ("/two", "/one"):
        manager = open_manager(disk, directory)
        log = manager.create(KEY, CONFIG, wall_ms=1, topic_id=NEW)
        for each in (1, 1, epoch):
            log.append_as_leader(build_batch((b"x",)), leader_epoch=each, wall_ms=1)
    assert len(log.segments) == 3
    disk.open("/one/t-0/00000000000000000001.log").truncate(0)
    manager = open_manager(disk)
    manager.resolve_duplicates(lambda _: NEW, wall_ms=1)
    assert (manager.directory_of(KEY), values_of(manager)) == ("/two", 3)


def write_and_truncate(disk: MemoryDisk, directory: str) -> None:
    """A folder of 20 records, all flushed and checkpointed, of which 15 are truncated.

    The process dies before the next checkpoint.
    """
    manager = open_manager(disk, directory)
    log = manager.create(KEY, CONFIG, wall_ms=1, topic_id=NEW)
    for _ in range(20):
        log.append_as_leader(build_batch((b"x",)), leader_epoch=2, wall_ms=1)
    flush = log.flush_plan()
    flush.run()
    log.mark_flushed(flush, wall_ms=1)
    (plan,) = manager.plan_checkpoints({KEY: 20})
    assert plan.run()
    manager.truncate_to(log, 5, wall_ms=1)


@pytest.mark.parametrize("kept", ["/one", "/two"], ids=["found-first", "found-last"])
def test_the_lines_of_a_copy_that_was_truncated_below_them_are_lowered(kept: str) -> None:
    """A recovery point above the log would let a later recovery trust records that were never flushed."""
    disk = MemoryDisk()
    write_and_truncate(disk, kept)
    write(disk, "/two" if kept == "/one" else "/one", NEW, [b"stale"] * 3, epoch=1)
    manager = open_manager(disk)
    assert manager.resolve_duplicates(lambda _: NEW, wall_ms=1).failures == {}
    assert manager.directory_of(KEY) == kept
    assert manager.durable_recovery_point(KEY) <= 5
    manager.logs[KEY].append_as_leader(build_batch((b"y",)), leader_epoch=3, wall_ms=1)
    assert values_of(manager) == 6


def test_a_directory_whose_lines_cannot_be_lowered_is_named() -> None:
    disk = MemoryDisk()
    write(disk, "/one", NEW, [b"stale"] * 2, epoch=1)
    write_and_truncate(disk, "/two")
    manager = open_manager(disk)
    disk.fails = lambda _, verb, path: OSError(5, "EIO") if path.startswith("/two/recovery-point") else None
    assert list(manager.resolve_duplicates(lambda _: NEW, wall_ms=1).failures) == ["/two"]


def test_until_it_is_settled_a_clean_stop_changes_neither_folder() -> None:
    """The metadata could not be read, say: checkpoint lines of the folder that counts must not be dropped."""
    disk = MemoryDisk()
    write(disk, "/one", OLD, [b"old"] * 5)
    write(disk, "/two", NEW, [b"new"] * 2)
    manager = open_manager(disk)
    assert manager.close({KEY: 5}, broker_epoch=4, wall_ms=1) == []
    assert log_directory.read_broker_epoch(disk, "/two/.kafka_cleanshutdown") is None, "checked again"
    manager = open_manager(disk)
    manager.resolve_duplicates(lambda _: NEW, wall_ms=1)
    assert manager.initial_high_watermark(KEY) == 2


def test_a_directory_that_fails_meanwhile_is_named_and_the_other_one_used() -> None:
    disk = MemoryDisk()
    write(disk, "/one", OLD, [b"old"] * 5)
    write(disk, "/two", NEW, [b"new"] * 2)
    manager = open_manager(disk)
    disk.fails = lambda _, verb, path: OSError(5, "EIO") if path.startswith("/one") else None
    settled = manager.resolve_duplicates(lambda _: NEW, wall_ms=1)
    assert list(settled.failures) == ["/one"]
    assert manager.fail_directory("/one", settled.failures["/one"]) == []
    assert values_of(manager) == 2


def test_a_directory_that_cannot_note_its_cluster_is_named() -> None:
    disk = MemoryDisk()
    manager = open_manager(disk)
    disk.fails = lambda _, verb, path: OSError(28, "full") if path.startswith("/two") else None
    assert list(manager.assign_cluster_id("c")) == ["/two"]
    assert [each.identity.cluster_id for each in manager.directories] == ["c", None]
