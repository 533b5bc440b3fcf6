"""A copy follows its log through any sequence of appends, truncations, deletions and compaction, also between
the read and the write of a slice."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_model import build_batch

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage import copying
from nilometer.storage.copying import Step, StepKind, next_step
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import batches
from support.logs.log_cleaner import clean_log, make_durable
from support.logs.memory_disk import MemoryDisk
from support.properties import examples

KEY = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
OPERATIONS = (
    "append",
    "append",
    "append several",
    "truncate",
    "delete",
    "start again",
    "lead",
    "step",
    "step",
)


class Copied:
    """A log in /one and its copy in /two, with what a broker does with both."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.disk = MemoryDisk()
        options = ManagerOptions(
            node_id=1,
            directories=("/one", "/two"),
            entropy=SeededEntropy(random.Random(1)),
            config_for=lambda _: config,
        )
        self.manager = LogManager.open(self.disk, options, wall_ms=1)
        self.log = self.manager.create(KEY, config, wall_ms=1, topic_id=uuid.UUID(int=7))
        plan = self.manager.plan_future(KEY, "/two", wall_ms=1)
        self.second = self.manager.add_future(plan, plan.make())
        self.copy = self.second.log
        self.epoch = 0
        self.count = 0
        self.checkpoint()

    def checkpoint(self) -> None:
        for plan in self.manager.plan_checkpoints({KEY: self.log.log_start_offset}):
            if plan.run():
                self.manager.note_checkpoint(plan)

    def append(self, batches_count: int = 1) -> None:
        for _ in range(batches_count):
            self.count += 1
            values = tuple(b"%d.%d" % (self.count, index) for index in range(1 + self.count % 3))
            self.log.append_as_leader(build_batch(values), leader_epoch=self.epoch, wall_ms=1)

    def operate(self, what: str, share: float) -> None:
        log = self.log
        offset = log.log_start_offset + int(share * (log.log_end_offset - log.log_start_offset))
        if what.startswith("append"):
            self.append(1 if what == "append" else 6)
        elif what == "truncate":
            self.manager.truncate_to(log, offset, wall_ms=1)
            self.epoch += 1  # what a leader of a later epoch has is appended then
        elif what == "delete":
            log.advance_log_start_offset(offset, log.log_end_offset)
            log.delete_old_segments(log.log_end_offset, 1)
        elif what == "start again":
            self.manager.truncate_fully_and_start_at(log, int(share * 60), wall_ms=1)
            self.epoch += 1
        elif what == "lead":
            self.epoch += 1
            log.epochs.begin(self.epoch, log.log_end_offset)
        else:
            self.step()
        self.checkpoint()

    def step(self) -> StepKind:
        log, copy = self.log, self.copy
        step = next_step(log, copy)
        if step.kind is StepKind.COPY:
            found = copying.copy_slice(log, copy, 300, truncations=log.truncations, wall_ms=1)
            if found.is_at_gap:
                copying.extend_over_gap(log, copy, wall_ms=1)
            copying.follow_log_start(copy, log.log_start_offset, wall_ms=1)
        elif step.kind is StepKind.TRUNCATE:
            copying.truncate(copy, step.offset, wall_ms=1)
            self.manager.hold_future(self.second)
        elif step.kind is StepKind.START_AGAIN:
            copying.start_again(log, copy, step.offset, wall_ms=1)
            self.manager.hold_future(self.second)
        self.checkpoint()
        return step.kind

    def check(self) -> None:
        for _ in range(300):
            if self.step() is StepKind.NOTHING:
                break
        log, copy = self.log, self.copy
        assert next_step(log, copy) == Step(StepKind.NOTHING)
        assert read(copy, log.log_start_offset) == read(log, log.log_start_offset)
        end = log.log_end_offset
        entries = log.epochs.entries
        self.manager.replace_by_future(KEY)
        assert (log.log_end_offset, log.epochs.entries) == (end, entries)
        self.append()
        assert read(log, log.log_start_offset)[-1][1] == end


def read(log: Log, offset: int) -> list[tuple[int, int, int]]:
    """(base offset, next offset, checksum) of all batches from ``offset``."""
    found: list[tuple[int, int, int]] = []
    while True:
        part = log.read(offset, 500, log.log_end_offset)
        assert part is not None
        if not part.records:
            return found
        for position, header in batches(part.records):
            checked = bytes(part.records)[position : position + header.size]
            found.append((hash(checked), header.base_offset, header.next_offset))
        offset = part.next_offset


@examples(60)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.floats(0, 1)), max_size=40))
def test_a_copy_has_what_its_log_has(operations: list[tuple[str, float]]) -> None:
    copied = Copied()
    for what, share in operations:
        copied.operate(what, share)
    copied.check()


@examples(40)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS[3:7]), st.floats(0, 1)), min_size=1, max_size=4))
def test_a_log_that_changes_between_the_read_and_the_write(operations: list[tuple[str, float]]) -> None:
    copied = Copied()
    copied.append(12)
    copied.step()
    append = copying.append_copied

    def change_first(source: Log, copy: Log, records: bytes, *, wall_ms: int) -> int:
        while operations:
            what, share = operations.pop()
            copied.operate(what, share)
            copied.append(4)
        return append(source, copy, records, wall_ms=wall_ms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "append_copied", change_first)
        copied.step()
    copied.check()


def test_a_log_without_records_is_copied() -> None:
    copied = Copied()
    copied.append(3)
    end = copied.log.log_end_offset
    copied.log.advance_log_start_offset(end, end)
    assert copied.step() is StepKind.START_AGAIN
    assert (copied.copy.log_start_offset, copied.copy.log_end_offset) == (end, end)
    copied.check()


def test_a_compacted_log_is_copied_with_its_gaps() -> None:
    copied = Copied(LogConfig(segment_bytes=600, is_compacted=True, min_cleanable_dirty_ratio=0.0))
    for _ in range(6):
        copied.append(8)
        copied.log.roll_now(1)
    make_durable(copied.log)
    clean_log(copied.log, wall_ms=10_000_000)
    assert copied.log.may_have_gaps
    copied.append(2)
    copied.check()
    assert copied.log.may_have_gaps
    assert copied.log.cleaned_offset > 0, "it is not compacted again from the start"


def test_the_copy_may_end_in_the_middle_of_a_batch_of_its_log() -> None:
    """Then it begins again, since it has other batches."""
    copied = Copied()
    copied.log.append_as_leader(build_batch((b"1", b"2", b"3")), leader_epoch=0, wall_ms=1)
    copied.copy.append_as_follower(build_batch((b"1",), base_offset=0, epoch=0), wall_ms=1)
    copied.check()


def test_a_copy_that_waits_for_its_checkpoint_takes_nothing() -> None:
    copied = Copied()
    copied.append(6)
    copied.step()
    copying.flush(copied.copy, wall_ms=1)
    copied.second.note_progress()
    copied.checkpoint()
    copying.truncate(copied.copy, 1, wall_ms=1)
    copied.manager.hold_future(copied.second)
    with pytest.raises(KafkaError):
        copying.copy_slice(copied.log, copied.copy, 300, truncations=copied.log.truncations, wall_ms=1)
    copied.checkpoint()
    copied.check()
