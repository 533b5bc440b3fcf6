"""A reader on another thread whose files the log's owner removes under it: no error of the disk."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from log_model import build_batch

from nilometer.runtime.disk import File
from nilometer.runtime.runtime import SeededEntropy
from nilometer.steps import at_once
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.errors import LogFenced, OffsetOutOfRange
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("a", 0)
CONFIG = LogConfig(segment_bytes=400, retention_bytes=-1, retention_ms=-1)
END = 12


class BusyDisk(MemoryDisk):
    """Runs ``meanwhile`` once, between a reader's decision to open a log file and the opening."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def open(self, path: str, *, create: bool = False, writable: bool = True, private: bool = False) -> File:
        if path.endswith(".log") and not writable and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().open(path, create=create, writable=writable, private=private)


@pytest.fixture
def disk() -> BusyDisk:
    return BusyDisk()


@pytest.fixture
def manager(disk: BusyDisk) -> LogManager:
    options = ManagerOptions(
        node_id=1,
        directories=["/one"],
        entropy=SeededEntropy(random.Random(1)),
        config_for=lambda _: CONFIG,
        open_files_max=3,
    )
    manager = LogManager.open(disk, options, wall_ms=1)
    log = manager.create(KEY, CONFIG, wall_ms=1)
    for number in range(END):
        batch = build_batch((b"%d" % number,), base_offset=number, epoch=0)
        log.append_as_follower(batch, wall_ms=1)
    assert len(tuple(log.segments)) > 2
    return manager


def delete_first_segment(log: Log) -> int:
    """The offset at which the log begins then."""
    second = tuple(log.segments)[1].base_offset
    log.advance_log_start_offset(second, END)
    assert len(log.delete_old_segments(END, 1)) > 0
    return second


def test_a_segment_that_was_deleted_meanwhile_is_below_the_log_start(
    disk: BusyDisk, manager: LogManager
) -> None:
    log = manager.logs[KEY]
    disk.meanwhile = lambda: delete_first_segment(log)
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1_000, END)


@pytest.mark.parametrize("newest", [False, True])
def test_a_search_by_time_goes_on_behind_what_was_deleted_meanwhile(
    disk: BusyDisk, manager: LogManager, newest: bool
) -> None:
    log = manager.logs[KEY]
    disk.meanwhile = lambda: delete_first_segment(log)
    found = at_once(log.offset_of_max_timestamp()) if newest else at_once(log.offset_for_timestamp(0))
    assert found is not None
    assert found.offset == log.log_start_offset > 0


@pytest.mark.parametrize(
    "read",
    [
        lambda log: log.read(0, 1_000, END),
        lambda log: at_once(log.offset_for_timestamp(0)),
        lambda log: at_once(log.offset_of_max_timestamp()),
    ],
)
def test_a_log_that_was_deleted_meanwhile_is_offline(
    disk: BusyDisk, manager: LogManager, read: Callable[[Log], object]
) -> None:
    def delete() -> None:
        folder = manager.delete(KEY)
        assert folder is not None
        disk.remove_tree(folder)

    log = manager.logs[KEY]
    disk.meanwhile = delete
    with pytest.raises(LogFenced):
        read(log)


def test_a_file_that_was_not_removed_is_an_error_of_the_disk(disk: BusyDisk, manager: LogManager) -> None:
    log = manager.logs[KEY]
    disk.remove(log.segments.first.log_path)
    for read in (lambda: log.read(0, 1_000, END), lambda: at_once(log.offset_for_timestamp(0))):
        with pytest.raises(FileNotFoundError):
            read()
