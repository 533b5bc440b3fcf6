"""Checkpoint lines carry a name only: none is believed for a later folder of that name, crash or not."""

from __future__ import annotations

import random
import uuid

import pytest
from log_model import build_batch, read_from

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage import checkpoints
from nilometer.storage.directories.checkpoint_files import CheckpointPlan
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.recovery import DamageKind
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import KafkaError
from support.logs.memory_disk import MemoryDisk

KEY, OTHER = TopicPartition("t", 0), TopicPartition("other", 0)
CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=100)
FILES = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


class Directory:
    """One log directory and its user, on a disk that can lose power."""

    def __init__(self, seed: int = 0) -> None:
        self.disk = MemoryDisk(seed)
        self.numbers = 0
        self.open()

    def open(self) -> None:
        self.disk.crash_process()
        self.numbers += 1
        entropy = SeededEntropy(random.Random(self.numbers))
        options = ManagerOptions(
            node_id=1, directories=["/data"], entropy=entropy, config_for=lambda _: CONFIG
        )
        self.manager = LogManager.open(self.disk, options, wall_ms=1)

    def create(self, key: TopicPartition = KEY, *, ahead: bool = False) -> Log:
        topic_id = uuid.UUID(int=self.numbers)
        if ahead:
            for plan in self.manager.plan_folders([(key, topic_id)]):
                plan.make()
        return self.manager.create(key, CONFIG, wall_ms=1, topic_id=topic_id)

    def old_topic(self) -> None:
        """A topic with a line in each checkpoint file; 30 records, deleted up to 25."""
        log = self.create()
        append(log, b"old", 30)
        log.advance_log_start_offset(25, 30)
        self.flush(log)
        self.checkpoint()

    def checkpoint(self) -> None:
        self.write(self.plan())

    def plan(self) -> CheckpointPlan:
        marks = {key: log.log_end_offset for key, log in self.manager.logs.items()}
        [plan] = self.manager.plan_checkpoints(marks)
        return plan

    def write(self, plan: CheckpointPlan) -> None:
        if plan.run():
            self.manager.note_checkpoint(plan)

    def flush(self, log: Log) -> None:
        plan = log.flush_plan()
        plan.run()
        log.mark_flushed(plan, wall_ms=1)

    def lines(self) -> list[dict[TopicPartition, int]]:
        return [checkpoints.read_offsets(self.disk, f"/data/{name}") for name in FILES]


def append(log: Log, value: bytes, count: int) -> None:
    for number in range(count):
        log.append_as_leader(build_batch((b"%s %d" % (value, number),)), leader_epoch=0, wall_ms=1)


def expect_only_new_records(directory: Directory, count: int) -> None:
    log = directory.manager.logs[KEY]
    assert (log.log_start_offset, log.log_end_offset) == (0, count)
    assert [value for _, value in read_from(log, 0, count)] == [b"new %d" % number for number in range(count)]
    assert log.damages == ()
    assert directory.manager.initial_high_watermark(KEY) == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_topic_created_again_is_not_cut_by_the_lines_of_the_deleted_one(ahead: bool) -> None:
    directory = Directory()
    directory.old_topic()
    directory.manager.delete(KEY)
    append(directory.create(ahead=ahead), b"new", 10)
    directory.open()
    expect_only_new_records(directory, 10)


def test_the_lines_are_not_believed_after_a_crash_between_deletion_and_creation_either() -> None:
    directory = Directory()
    directory.old_topic()
    directory.manager.delete(KEY)
    directory.open()
    append(directory.create(), b"new", 10)
    directory.open()
    expect_only_new_records(directory, 10)
    directory.open()
    expect_only_new_records(directory, 10)


def test_a_write_planned_before_the_deletion_does_not_bring_the_lines_back() -> None:
    directory = Directory()
    directory.old_topic()
    late = directory.plan()
    directory.manager.delete(KEY)
    append(directory.create(), b"new", 10)
    directory.write(late)
    directory.open()
    expect_only_new_records(directory, 10)


def test_a_name_used_three_times_within_one_write() -> None:
    directory = Directory()
    directory.old_topic()
    directory.manager.delete(KEY)
    middle = directory.create()
    append(middle, b"middle", 30)
    middle.advance_log_start_offset(20, 30)
    late = directory.plan()
    directory.manager.delete(KEY)
    append(directory.create(), b"new", 10)
    directory.write(late)
    directory.open()
    expect_only_new_records(directory, 10)


def test_the_next_checkpoint_is_believed_again_and_leaves_nothing_behind() -> None:
    directory = Directory()
    directory.old_topic()
    directory.manager.delete(KEY)
    log = directory.create()
    append(log, b"new", 10)
    log.advance_log_start_offset(4, 10)
    directory.checkpoint()
    assert not [name for name in directory.disk.list_directory("/data/t-0") if "void" in name]
    directory.open()
    assert directory.manager.logs[KEY].log_start_offset == 4
    assert directory.manager.initial_high_watermark(KEY) == 10


def test_a_folder_of_a_new_name_gets_no_marker() -> None:
    directory = Directory()
    directory.old_topic()
    directory.create(OTHER, ahead=True)
    assert not [name for name in directory.disk.list_directory("/data/other-0") if "void" in name]


def test_the_lines_of_a_deleted_log_go_with_the_next_write() -> None:
    directory = Directory()
    directory.old_topic()
    directory.create(OTHER)
    directory.checkpoint()
    directory.manager.delete(KEY)
    directory.checkpoint()
    assert not any(KEY in offsets for offsets in directory.lines())
    assert OTHER in directory.lines()[0]


@pytest.mark.parametrize("seed", range(60))
def test_a_name_used_again_through_a_power_cut_at_any_step(seed: int) -> None:
    """Replay one: ``pytest tests/unit/storage/test_checkpoint_lines.py -k 'any_step and <seed>'``."""
    chance = random.Random(seed)
    directory = Directory(seed)
    directory.old_topic()
    steps = chance.randrange(1, 60)
    directory.disk.fail_from(steps)
    flushed = 0
    log = None
    try:
        plan = directory.plan() if chance.random() < 0.5 else None
        directory.manager.delete(KEY)
        if plan is not None:
            directory.write(plan)
        log = directory.create(ahead=chance.random() < 0.5)
        for _ in range(4):
            append(log, b"new", 3)
            if chance.random() < 0.5:
                directory.flush(log)
                flushed = log.flushed_offset
            if chance.random() < 0.5:
                directory.checkpoint()
    except (OSError, KafkaError):
        pass  # the disk failed: the power goes
    directory.disk.work_again()
    if chance.random() < 0.5:
        directory.disk.crash_machine(seed)
    directory.open()
    found = directory.manager.logs.get(KEY)
    if flushed:
        assert found is not None
        assert found.log_start_offset == 0
        assert found.log_end_offset >= flushed
        assert [value[:3] for _, value in read_from(found, 0, flushed)] == [b"new"] * flushed
        assert all(damage.kind is DamageKind.TORN for damage in found.damages)


def test_records_below_a_log_start_that_is_too_high_are_cut_off_as_damage() -> None:
    directory = Directory()
    log = directory.create()
    append(log, b"kept", 10)
    directory.checkpoint()
    checkpoints.write_offsets(directory.disk, f"/data/{FILES[2]}", {KEY: 500})
    directory.open()
    log = directory.manager.logs[KEY]
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    [damage] = directory.manager.damages
    assert damage.kind is DamageKind.DAMAGED
    assert damage.offset == 10
    assert damage.evidence
    assert all(directory.disk.exists(path) for path in damage.evidence)


def test_an_older_plan_never_replaces_a_newer_one() -> None:
    directory = Directory()
    log = directory.create()
    append(log, b"a", 10)
    directory.flush(log)
    older = directory.plan()
    append(log, b"b", 10)
    directory.flush(log)
    directory.write(directory.plan())
    assert not older.run()
    assert directory.lines()[0] == {KEY: 20}


def test_a_log_cut_below_its_lines_takes_no_appends_before_they_are_rewritten() -> None:
    directory = Directory()
    log = directory.create()
    append(log, b"a", 10)
    directory.flush(log)
    directory.checkpoint()
    early = directory.plan()
    directory.manager.truncate_to(log, 5, wall_ms=1)
    with pytest.raises(KafkaError, match="checkpoint"):
        append(log, b"too soon", 1)
    directory.write(early)  # planned before the cut: it says too much still
    with pytest.raises(KafkaError, match="checkpoint"):
        append(log, b"too soon", 1)
    directory.checkpoint()
    append(log, b"b", 1)
    assert directory.lines()[0] == {KEY: 5}


def test_the_lines_of_a_log_that_was_cut_are_lowered_when_its_process_died_before_that() -> None:
    """Otherwise a power cut lets recovery trust records that were appended since and not flushed."""
    directory = Directory()
    log = directory.create()
    append(log, b"a", 40)
    directory.flush(log)
    directory.checkpoint()
    directory.manager.truncate_to(log, 5, wall_ms=1)
    directory.open()
    assert directory.lines()[:2] == [{KEY: 5}, {KEY: 5}]
    log = directory.manager.logs[KEY]
    append(log, b"b", 45)
    directory.disk.crash_machine(7)
    directory.open()
    log = directory.manager.logs[KEY]
    directory.manager.resolve_gap(log, wall_ms=1)
    assert len(read_from(log, 0, log.log_end_offset)) == log.log_end_offset >= 5


def test_a_write_for_an_earlier_log_of_the_name_does_not_release_a_later_one() -> None:
    directory = Directory()
    log = directory.create()
    append(log, b"a", 20)
    directory.flush(log)
    directory.checkpoint()
    directory.manager.truncate_to(log, 5, wall_ms=1)
    slow = directory.plan()
    directory.manager.delete(KEY)
    log = directory.create()
    append(log, b"b", 20)
    directory.manager.truncate_to(log, 5, wall_ms=1)
    log.await_checkpoint()
    directory.write(slow)
    with pytest.raises(KafkaError, match="checkpoint"):
        append(log, b"too soon", 1)


def test_a_cut_above_the_lines_costs_no_checkpoint() -> None:
    directory = Directory()
    log = directory.create()
    append(log, b"a", 10)
    directory.manager.truncate_fully_and_start_at(log, 40, wall_ms=1)
    append(log, b"b", 1)
    assert log.log_end_offset == 41


def test_what_a_crash_left_of_a_replacement_is_removed() -> None:
    directory = Directory()
    directory.create()
    for path in (
        "/data/recovery-point-offset-checkpoint.7-3.tmp",
        "/data/t-0/leader-epoch-checkpoint.7-4.tmp",
    ):
        directory.disk.open(path, create=True).close()
    directory.open()
    names = directory.disk.list_directory("/data") + directory.disk.list_directory("/data/t-0")
    assert not [name for name in names if name.endswith(".tmp")]
