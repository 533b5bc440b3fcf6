"""A log is moved to another log directory, and the process or the machine fails at every operation.

Whatever is left, the next start finds one complete log, continues the move, and leaves no folder behind.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import pytest
from log_model import build_batch, read_from

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage import copying
from nilometer.storage.copying import StepKind, next_step
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.errors import LogFenced
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition, future_folder_name
from nilometer.storage.producers import AppendOrigin
from nilometer.storage.recovery import DamageKind
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import KafkaError
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker
from support.logs.log_cleaner import make_durable
from support.logs.memory_disk import MemoryDisk

KEY = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=400, file_delete_delay_ms=0)
TOPIC_ID = uuid.UUID(int=7)
SLICE_BYTES = 500


class MovedLog:
    """A log in /one that is moved to /two, and what was acknowledged: with each flush of the log in use."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.written: list[bytes] = []
        self.appended = self.acknowledged = 0
        self.manager = self._open()
        self.manager.create(KEY, CONFIG, wall_ms=1, topic_id=TOPIC_ID)
        self.checkpoint()
        for _ in range(12):
            self.append()
        self.flush()
        self.checkpoint()
        for folder in ("/", "/one", "/two"):
            self.disk.sync_directory(folder)

    def _open(self) -> LogManager:
        options = ManagerOptions(
            node_id=1,
            directories=("/one", "/two"),
            entropy=SeededEntropy(random.Random(1)),
            config_for=lambda _: CONFIG,
        )
        return LogManager.open(self.disk, options, wall_ms=1)

    @property
    def log(self) -> Log:
        return self.manager.logs[KEY]

    def append(self) -> None:
        value = b"%d" % len(self.written)
        self.written.append(value)
        self.log.append_as_leader(build_batch((value,)), leader_epoch=len(self.written) // 7, wall_ms=1)
        self.appended = len(self.written)

    def flush(self) -> None:
        make_durable(self.log)
        self.acknowledged = self.log.flushed_offset

    def checkpoint(self) -> None:
        for plan in self.manager.plan_checkpoints({KEY: self.acknowledged}):
            if plan.run():
                self.manager.note_checkpoint(plan)

    def move(self, *, checkpoints: bool = True) -> None:
        """Move the log to /two from any state, as a broker does, with appends at every step.

        ``checkpoints``: write them at the end.
        """
        manager, log = self.manager, self.log
        if manager.seconds.get(KEY) is None and manager.directory_of(KEY) == "/one":
            plan = manager.plan_future(KEY, "/two", wall_ms=1)
            manager.add_future(plan, plan.make())
            self.checkpoint()
        second = manager.seconds.get(KEY)
        if second is not None and not second.is_former:
            self._copy(log, second.log)
            second.note_progress()
            self.checkpoint()
            self.append()
            self._copy(log, second.log)
            manager.replace_by_future(KEY)
        if (former := manager.seconds.get(KEY)) is not None:
            self.append()
            self.flush()
            self.append()
            folder = manager.remove_second(KEY)
            finish = manager.finish_move(log, former)
            finish()
            if checkpoints:
                self.checkpoint()
            if folder is not None:
                self.disk.remove_tree(folder)
            self.flush()

    def _copy(self, log: Log, copy: Log) -> None:
        while (step := next_step(log, copy)).kind is not StepKind.NOTHING:
            if step.kind is StepKind.COPY:
                copying.copy_slice(log, copy, SLICE_BYTES, truncations=log.truncations, wall_ms=1)
            elif step.kind is StepKind.TRUNCATE:
                copying.truncate(copy, step.offset, wall_ms=1)
            else:
                copying.start_again(log, copy, step.offset, wall_ms=1)
            copying.flush(copy, wall_ms=1)

    def crash(self, seed: int | None) -> None:
        self.disk.work_again()
        if seed is None:
            self.disk.crash_process()
        else:
            self.disk.crash_machine(seed)
        self.manager = self._open()
        assert not self.manager.has_uncertain_duplicates
        resolved = self.manager.resolve_duplicates(lambda _: TOPIC_ID, wall_ms=1)
        assert (resolved.failures, resolved.stale_folders) == ({}, [])
        for folder in self.manager.removable_folders:
            self.disk.remove_tree(folder)
        self.checkpoint()

    def check(self, *, needed: int) -> None:
        """The log in use has the first ``needed`` records at least, and only what was written."""
        found = [value for _, value in read_from(self.log, 0, self.log.log_end_offset)]
        assert len(found) >= needed, (len(found), needed)
        assert found == self.written[: len(found)]
        del self.written[len(found) :]

    def folders(self) -> list[str]:
        return [
            f"{path}/{name}"
            for path in ("/one", "/two")
            for name in self.disk.list_directory(path)
            if name.startswith("t-0")
        ]


def operations_of_a_move() -> int:
    moved = MovedLog()
    before = moved.disk.operations
    moved.move()
    moved.check(needed=len(moved.written))
    assert moved.folders() == ["/two/t-0"]
    return moved.disk.operations - before


OPERATIONS = operations_of_a_move()


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(None, id="process"),
        pytest.param(1, id="power-1"),
        pytest.param(2, id="power-2", marks=pytest.mark.thorough),
        pytest.param(3, id="power-3", marks=pytest.mark.thorough),
    ],
)
def test_a_move_that_ends_anywhere_loses_nothing_and_goes_on(seed: int | None) -> None:
    assert OPERATIONS > 50
    for number in range(1, OPERATIONS + 1):
        moved = MovedLog()
        moved.disk.fail_from(number)
        with pytest.raises((OSError, LogFenced, KafkaError, KeyError)):
            moved.move()
            raise KeyError("it did not fail")
        needed = moved.appended if seed is None else moved.acknowledged
        moved.crash(seed)
        moved.check(needed=needed)
        if moved.manager.directory_of(KEY) == "/one":
            moved.move()
        moved.check(needed=needed)
        assert moved.folders() == ["/two/t-0"], number
        moved.crash(seed)
        moved.check(needed=moved.acknowledged)
        assert moved.log.topic_id == TOPIC_ID
        assert all(damage.kind is DamageKind.TORN for damage in moved.log.damages)


def test_the_copy_is_continued_after_a_restart() -> None:
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    with pytest.raises(KafkaError):
        copying.copy_slice(
            moved.log, second.log, SLICE_BYTES, truncations=moved.log.truncations, wall_ms=1
        )  # its topic id is not durable
    moved.checkpoint()
    copying.copy_slice(moved.log, second.log, SLICE_BYTES, truncations=moved.log.truncations, wall_ms=1)
    copying.flush(second.log, wall_ms=1)
    second.note_progress()
    moved.checkpoint()
    end = second.log.log_end_offset
    assert 0 < end < moved.log.log_end_offset
    moved.crash(1)
    continued = moved.manager.seconds.get(KEY)
    assert continued is not None
    assert continued.log.log_end_offset == end
    assert continued.log.recovery_point > 0, "only its last segment was checked"
    moved.move()
    moved.check(needed=len(moved.written))


def test_the_topic_id_of_an_empty_copy_is_durable_after_a_restart() -> None:
    """A killed process may have created the folder, and not synced it."""
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    plan.make()
    moved.crash(None)
    second = moved.manager.seconds.get(KEY)
    assert second is not None
    copying.copy_slice(moved.log, second.log, SLICE_BYTES, truncations=0, wall_ms=1)
    moved.disk.sync_directory("/two")
    moved.crash(1)
    second = moved.manager.seconds.get(KEY)
    assert second is not None and second.log.topic_id == TOPIC_ID


def test_the_topic_id_of_a_copy_that_was_made_during_a_clean_shutdown_is_durable_after_a_restart() -> None:
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    assert moved.manager.close({KEY: 1}, broker_epoch=3, wall_ms=1) == []
    plan.make()
    moved.crash(None)
    assert moved.manager.previous_broker_epoch == 3, "nothing has to be recovered"
    second = moved.manager.seconds.get(KEY)
    assert second is not None
    copying.copy_slice(moved.log, second.log, SLICE_BYTES, truncations=0, wall_ms=1)
    moved.disk.sync_directory("/two")
    moved.crash(1)
    second = moved.manager.seconds.get(KEY)
    assert second is not None and second.log.topic_id == TOPIC_ID


def test_after_a_clean_shutdown_in_the_middle_both_logs_are_trusted() -> None:
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    moved.checkpoint()
    copying.copy_slice(moved.log, second.log, SLICE_BYTES, truncations=moved.log.truncations, wall_ms=1)
    end = second.log.log_end_offset
    assert moved.manager.close({KEY: 1}, broker_epoch=3, wall_ms=1) == []
    moved.crash(1)
    assert moved.manager.previous_broker_epoch == 3
    continued = moved.manager.seconds.get(KEY)
    assert continued is not None
    assert (continued.log_end_offset, continued.recovery_point) == (end, end)


def test_a_clean_shutdown_after_the_exchange_ends_the_move() -> None:
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    moved.checkpoint()
    while next_step(moved.log, second.log).kind is StepKind.COPY:
        copying.copy_slice(moved.log, second.log, SLICE_BYTES, truncations=moved.log.truncations, wall_ms=1)
    moved.manager.replace_by_future(KEY)
    moved.append()
    assert moved.folders() == ["/one/t-0", "/two/t-0"]
    assert moved.manager.close({KEY: 1}, broker_epoch=3, wall_ms=1) == []
    assert [name for name in moved.folders() if not name.endswith("-delete")] == ["/two/t-0"]
    moved.crash(1)
    assert moved.manager.previous_broker_epoch == 3
    assert moved.folders() == ["/two/t-0"]
    moved.check(needed=moved.appended)


@pytest.mark.parametrize("path", ["/one", "/two"], ids=["source", "target"])
def test_a_directory_that_fails_ends_the_move_only(path: str) -> None:
    moved = MovedLog()
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    affected = moved.manager.fail_directory(path, OSError(5, "EIO"))
    assert affected == ([KEY] if path == "/one" else [])
    assert (moved.manager.seconds.get(KEY) is None) == (path == "/two")
    assert (second.log.failure is None) == (path == "/one")


def transactions() -> Iterator[tuple[bytes, bytes]]:
    """A batch of a transaction, and its marker: one is aborted, one is open."""
    yield (
        build_batch((b"aborted",), producer=(11, 0, 0), transactional=True),
        build_end_txn_marker(EndTxnMarker(ControlType.ABORT, 1, 1_000), producer_id=11, producer_epoch=0),
    )
    yield build_batch((b"open",), producer=(12, 0, 5), transactional=True), b""


def test_idempotence_and_transactions_survive_the_exchange() -> None:
    moved = MovedLog()
    for batch, marker in transactions():
        moved.log.append_as_leader(batch, leader_epoch=9, wall_ms=1)
        if marker:
            moved.log.append_as_leader(marker, leader_epoch=9, wall_ms=1, origin=AppendOrigin.COORDINATOR)
    log, end = moved.log, moved.log.log_end_offset
    before = log.aborted_transactions(0, end), log.last_stable_offset(end), log.epochs.entries
    log.epochs.begin(12, end)  # an epoch without a record
    assert before[1] < end
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    moved.checkpoint()
    while next_step(log, second.log).kind is StepKind.COPY:
        copying.copy_slice(log, second.log, SLICE_BYTES, truncations=log.truncations, wall_ms=1)
    moved.manager.replace_by_future(KEY)
    assert moved.log is log
    assert log.folder == "/two/t-0"
    assert (log.aborted_transactions(0, end), log.last_stable_offset(end)) == before[:2]
    assert log.epochs.entries == (*before[2], (12, end))
    again = log.append_as_leader(
        build_batch((b"open",), producer=(12, 0, 5), transactional=True), leader_epoch=12, wall_ms=1
    )
    assert again.duplicate
    assert log.log_end_offset == end


def test_a_reader_that_began_before_the_exchange_reads_the_same_records() -> None:
    """The former folder is gone before a read on another thread opens its file."""
    moved = MovedLog()
    log = moved.log
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    moved.checkpoint()
    while next_step(log, second.log).kind is StepKind.COPY:
        copying.copy_slice(log, second.log, SLICE_BYTES, truncations=log.truncations, wall_ms=1)
    opened = moved.disk.open

    def exchange_first(path: str, **how: bool) -> object:
        moved.disk.open = opened  # type: ignore[method-assign]
        moved.manager.replace_by_future(KEY)
        folder = moved.manager.remove_second(KEY)
        assert folder is not None
        moved.disk.remove_tree(folder)
        return opened(path, **how)

    moved.disk.open = exchange_first  # type: ignore[method-assign,assignment]
    assert [value for _, value in read_from(log, 0, log.log_end_offset)] == moved.written


def test_a_flush_that_was_planned_before_the_exchange_makes_nothing_durable() -> None:
    moved = MovedLog()
    log = moved.log
    plan = moved.manager.plan_future(KEY, "/two", wall_ms=1)
    second = moved.manager.add_future(plan, plan.make())
    moved.checkpoint()
    while next_step(log, second.log).kind is StepKind.COPY:
        copying.copy_slice(log, second.log, SLICE_BYTES, truncations=log.truncations, wall_ms=1)
    flush = log.flush_plan()
    moved.manager.replace_by_future(KEY)
    flush.run()
    log.mark_flushed(flush, wall_ms=1)
    assert log.flushed_offset == 0
    make_durable(log)
    assert log.flushed_offset == log.log_end_offset
    assert log.name_changes_durable


def test_a_void_marker_protects_a_copy_from_lines_of_an_earlier_folder() -> None:
    """The log is moved to /two and back to /one, whose checkpoint files still have its former offsets."""
    moved = MovedLog()
    moved.move(checkpoints=False)
    plan = moved.manager.plan_future(KEY, "/one", wall_ms=1)
    assert plan.void_marker is not None
    moved.manager.add_future(plan, plan.make())
    assert KEY in moved.manager.directories[0].checkpoints.void_markers
    moved.checkpoint()
    assert KEY not in moved.manager.directories[0].checkpoints.void_markers
    assert not [name for name in moved.disk.list_directory(plan.folder) if "void" in name]
    assert moved.manager.plan_future(KEY, "/one", wall_ms=1).void_marker is not None


def test_a_chosen_directory_is_used_once_and_only_if_it_is_online() -> None:
    moved = MovedLog()
    other = TopicPartition("other", 3)
    moved.manager.prefer_directory(other, "/one")
    (folder,) = moved.manager.plan_folders([(other, TOPIC_ID)])
    assert folder.directory == "/one"
    moved.manager.create(other, CONFIG, wall_ms=1, topic_id=TOPIC_ID)
    assert moved.manager.directory_of(other) == "/one"
    moved.manager.prefer_directory(KEY, "/one")
    moved.manager.fail_directory("/one", OSError(5, "EIO"))
    (folder,) = moved.manager.plan_folders([(KEY, TOPIC_ID)])
    assert folder.directory == "/two"


def test_the_name_of_a_topic_may_be_too_long_to_move() -> None:
    assert future_folder_name(TopicPartition("t" * 213, 0), "a" * 32) is not None
    assert future_folder_name(TopicPartition("t" * 214, 0), "a" * 32) is None
