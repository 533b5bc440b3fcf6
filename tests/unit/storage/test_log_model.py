"""A real log against a list, through any sequence of appends, cuts, flushes and crashes.

After a process crash nothing may be missing; after a machine crash, nothing below the flushed offset,
and what lies above it was once written there.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from log_model import ModelBatch, ModelLog, batches_from, build_batch, read_from

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.errors import KafkaError
from support.logs.memory_disk import MemoryDisk
from support.properties import examples

KEY = TopicPartition("model", 0)
CONFIG = LogConfig(
    segment_bytes=1500, index_interval_bytes=200, retention_bytes=3000, segment_index_bytes=200
)
VALUES = st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=4).map(tuple)


class LogMachine(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.disk = MemoryDisk(seed)
        self.options = ManagerOptions(
            node_id=1,
            directories=["/data"],
            entropy=SeededEntropy(random.Random(seed)),
            config_for=lambda _: CONFIG,
            open_files_max=4,
        )
        self.model = ModelLog()
        self.producer_epoch = 0
        self.sequence = 0
        self.start_max = 0
        self.manager = LogManager.open(self.disk, self.options, wall_ms=1)
        self.log = self.manager.create(KEY, CONFIG, wall_ms=1)
        self.flush()  # the partition's own folder is durable from here on
        self.checkpoint()

    @rule(values=VALUES)
    def append_as_leader(self, values: tuple[bytes, ...]) -> None:
        expected = self.model.append(values)
        records = build_batch(values, producer=(5, self.producer_epoch, self.sequence))
        info = self.log.append_as_leader(records, leader_epoch=self.model.epoch, wall_ms=1_000)
        self.sequence += len(values)
        assert (info.first_offset, info.last_offset + 1) == (
            expected.base_offset,
            expected.next_offset,
        ), info

    @rule(several=st.lists(VALUES, min_size=1, max_size=5))
    def append_as_follower(self, several: list[tuple[bytes, ...]]) -> None:
        records = b""
        for values in several:
            batch = self.model.append(values)
            records += build_batch(values, base_offset=batch.base_offset, epoch=batch.epoch)
        self.log.append_as_follower(records + records[:20], wall_ms=1_000)

    @rule()
    def enter_epoch(self) -> None:
        self.model.epoch += 1
        self.log.epochs.begin(self.model.epoch, self.model.end)

    @rule(data=st.data())
    def read_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.end))
        assert read_from(self.log, offset, self.model.end) == self.model.records_from(offset)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.end))
        self.manager.truncate_to(self.log, offset, wall_ms=1)
        self.model.truncate(offset)
        self.checkpoint_if_owed()
        self.resume_sequence()

    @rule(ahead=st.integers(0, 20))
    def start_again(self, ahead: int) -> None:
        offset = self.model.end + ahead
        truncation = self.manager.truncate_fully_and_start_at(self.log, offset, wall_ms=1)
        for path in truncation.removable:
            self.disk.remove(path)
        self.model.batches.clear()
        self.model.start = self.model.end = offset
        self.checkpoint_if_owed()
        self.resume_sequence()

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.end))
        self.log.advance_log_start_offset(offset, self.model.end)
        self.model.advance_start(offset)

    @rule()
    def apply_retention(self) -> None:
        for path in self.log.delete_old_segments(self.model.end, 2_000):
            self.disk.remove(path)
        assert self.log.log_start_offset >= self.model.start
        self.model.advance_start(self.log.log_start_offset)

    @rule()
    def flush(self) -> None:
        plan = self.log.flush_plan()
        plan.run()
        self.log.mark_flushed(plan, wall_ms=1)
        assert self.log.flushed_offset == self.model.end

    @rule()
    def flush_overtaken_by_appends(self) -> None:
        plan = self.log.flush_plan()
        before = self.model.end
        self.append_as_leader((b"meanwhile",))
        plan.run()
        self.log.mark_flushed(plan, wall_ms=1)
        assert self.log.flushed_offset == before

    @rule()
    def checkpoint(self) -> None:
        for plan in self.manager.plan_checkpoints({KEY: self.model.end}):
            assert plan.run()
            self.manager.note_checkpoint(plan)
        assert not self.log.awaits_checkpoint

    def checkpoint_if_owed(self) -> None:
        if self.log.awaits_checkpoint:
            with pytest.raises(KafkaError, match="checkpoint"):
                self.log.append_as_leader(build_batch((b"too soon",)), leader_epoch=0, wall_ms=1)
            self.checkpoint()

    @rule()
    def restart_in_order(self) -> None:
        assert self.manager.close({KEY: self.model.end}, broker_epoch=3, wall_ms=1) == []
        self.disk.crash_process()
        self.reopen()
        assert self.log.log_end_offset == self.model.end
        assert self.log.recovery_point == self.model.end

    @rule()
    def crash_process(self) -> None:
        self.disk.crash_process()
        self.reopen()
        assert self.log.log_end_offset == self.model.end
        assert self.log.damages == ()

    @rule(seed=st.integers(0, 2**32))
    def crash_machine(self, seed: int) -> None:
        durable = self.log.flushed_offset
        self.disk.crash_machine(seed)
        self.reopen()
        self.model.end = self.log.log_end_offset
        found = batches_from(self.log, self.model.start)
        kept = [batch for batch in found if batch.next_offset <= durable]
        assert kept == [batch for batch in self.kept() if batch.next_offset <= durable]
        # What was cut off but never synced as such may be back; anything else was never written.
        assert set(found) <= self.model.history
        assert self.model.end == (found[-1].next_offset if found else self.model.end)
        assert durable <= self.model.end
        self.model.batches = found

    def reopen(self) -> None:
        self.manager = LogManager.open(self.disk, self.options, wall_ms=1)
        self.log = self.manager.logs[KEY]
        self.manager.resolve_gap(self.log, wall_ms=1)  # the topic is not compacted
        self.checkpoint_if_owed()
        # A log start that was not checkpointed is forgotten, back to the first segment that is left.
        assert self.log.log_start_offset <= max(self.model.start, self.log.log_end_offset)
        self.model.start = self.log.log_start_offset
        self.resume_sequence()

    def resume_sequence(self) -> None:
        """As a client does whose last batches may be lost: a new epoch, from sequence 0."""
        self.producer_epoch += 1
        self.sequence = 0

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.model.end
        assert self.log.log_start_offset == self.model.start
        assert self.log.flushed_offset <= self.model.end
        assert self.log.recovery_point <= self.log.flushed_offset
        assert self.disk.open_files <= 4

    @invariant()
    def epochs_agree_with_records(self) -> None:
        if not hasattr(self, "log"):
            return
        self.start_max = min(max(self.start_max, self.model.start), self.model.end)
        entries = self.log.epochs.entries
        assert list(entries) == sorted(set(entries))
        for batch in self.kept():
            if batch.base_offset >= self.start_max:
                assert self.log.epochs.epoch_for_offset(batch.base_offset) == batch.epoch

    def kept(self) -> list[ModelBatch]:
        return [batch for batch in self.model.batches if batch.next_offset > self.model.start]

    @invariant()
    def producer_is_known_by_its_last_batch(self) -> None:
        if not hasattr(self, "log"):
            return
        entry = self.log.producers.producers.get(5)
        if entry is not None and entry.batches:
            assert entry.last_offset < self.model.end


TestLogAgainstModel = LogMachine.TestCase
TestLogAgainstModel.settings = examples(
    60,
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.generate),  # shrinking a run of forty steps takes minutes
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("seed", range(40))
def test_a_machine_that_crashes_after_a_segment_was_rolled(seed: int) -> None:
    """The end of the former segment may be lost, and the segment after it not."""
    state = LogMachine()
    state.start(seed=seed)
    for number in range(8):
        state.append_as_leader(values=(bytes((number,)) * 300,))
        if number == 2:
            state.restart_in_order()
    state.crash_machine(seed=seed)
    state.append_as_leader(values=(b"after it",))
    state.offsets_agree()
