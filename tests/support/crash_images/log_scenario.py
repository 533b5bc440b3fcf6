"""Writes to partition logs, drawn from a seed, with marks of what is promised: a recording for crash images.

The storage engine of a broker runs on a ``RecordingDisk``; its calls are those of the broker, with its
preconditions. Five partitions: ``flushed-0`` is flushed after each append, ``lazy-0`` when a segment is full,
``compacted-0`` is compacted, ``follower-0`` is truncated by new leader epochs, ``reborn-0`` is deleted and
created again.

Marks (key, topic id, …): ``created``; ``append`` (offset, epoch, serial number, its predecessor's serial
number, producer sequence) before a record is written; ``durable`` (end offset) after a flush; ``truncate``
(end offset) and ``start`` (new log start offset) before they begin; ``deleted`` before the deletion begins;
``flag`` (kind of write) where a step begins; ``identity`` (the directory's id) once it is open.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nilometer.runtime.runtime import SeededEntropy
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, make_folders_durable
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.storage.topic_config import LogConfig
from nilometer.wire.record_batch import BatchHeader, batches
from nilometer.wire.records import BatchBuilder, decode_records
from support.crash_images.recording import Killed, Mark, Recording, RecordingDisk
from support.logs.log_cleaner import clean_log

FLUSHED, LAZY, COMPACTED, FOLLOWER, REBORN = (
    TopicPartition(name, 0) for name in ("flushed", "lazy", "compacted", "follower", "reborn")
)
KEYS = (FLUSHED, LAZY, COMPACTED, FOLLOWER, REBORN)
PRODUCER_ID = 7
RECORD_KEYS = 4
KILLS = 0.1
"""The share of the steps during which the process is killed."""


def config_for(key: TopicPartition) -> LogConfig:
    return LogConfig(
        segment_bytes=900,
        index_interval_bytes=150,
        is_compacted=key == COMPACTED,
        is_deleted_by_retention=key != COMPACTED,
        flush_messages=1 if key == FLUSHED else (1 << 63) - 1,
        min_cleanable_dirty_ratio=0.0,
    )


def options_for(directory: str, seed: int) -> ManagerOptions:
    return ManagerOptions(
        node_id=1,
        directories=[directory],
        entropy=SeededEntropy(random.Random(seed)),
        config_for=config_for,
        open_files_max=4,
    )


def value_of(topic_id: uuid.UUID, serial: int) -> bytes:
    return f"{topic_id.hex}:{serial}:".encode() + b"x" * (serial * 37 % 90)


class LogScenario:
    """``LogScenario(folder, seed).run(steps)`` returns the recording of ``folder``, which is empty before.

    ``LogScenario(folder, seed, before, marks)`` continues the scenario ``before``, of which these were the
    marks when the power failed, with what that left in ``folder``.
    """

    def __init__(
        self, folder: Path, seed: int, before: LogScenario | None = None, marks: Sequence[Mark] = ()
    ) -> None:
        self.chance = random.Random(seed)
        self.disk = RecordingDisk(folder, marks)
        self.directory = f"{folder}/data"
        self.wall_ms = 1_000_000
        self._may_have_damage = before is not None
        self._before = before
        self.manager = LogManager.open(self.disk, options_for(self.directory, seed), wall_ms=self.wall_ms)
        self._serial = 0
        self._serials: dict[TopicPartition, list[int]] = {}
        """The serial numbers of the batches in each log (one record each), in order."""
        self._sequences: dict[TopicPartition, int] = {}
        self._epoch = 0
        self._starts: dict[TopicPartition, int] = {}
        self._deleted: set[uuid.UUID] = set()

    def run(self, steps: int) -> Recording:
        self.disk.mark("identity", self.manager.directories[0].identity.directory_id or "")
        if self._before is None:
            for key in KEYS:
                self._create(key)
        else:
            self._serial, self._epoch = self._before._serial, self._before._epoch
            self._deleted = {
                uuid.UUID(hex=str(mark.values[1]))
                for mark in self.disk.recording.operations
                if isinstance(mark, Mark) and mark.kind == "deleted"
            }
            self._open_again()
        actions = (
            (self._append, 12),
            (self._flush, 3),
            (self._checkpoint, 3),
            (self._truncate, 2),
            (self._delete_records, 1),
            (self._compact, 2),
            (self._recreate, 2),
            (self._restart, 0.5),
        )
        for _ in range(steps):
            self.wall_ms += self.chance.randint(1, 50)
            (act,) = self.chance.choices([each for each, _ in actions], [weight for _, weight in actions])
            self.disk.mark("flag", act.__name__.strip("_"))
            if self.chance.random() < KILLS:
                self.disk.operations_left = self.chance.randrange(25)
            try:
                act()
                killed = self.disk.operations_left is not None
            except Killed:
                killed = True
            if killed:
                self.disk.mark("flag", "restart")
                self._open_again()
        self.disk.operations_left = None
        self.manager.close(self._high_watermarks(), broker_epoch=1, wall_ms=self.wall_ms)
        return self.disk.recording

    # ---- steps

    def _create(self, key: TopicPartition) -> None:
        topic_id = uuid.UUID(int=self.chance.getrandbits(128), version=4)
        self.disk.mark("created", str(key), topic_id.hex)
        config = config_for(key)
        match self.chance.randrange(3):
            case 0:
                plans = self.manager.plan_folders([(key, topic_id)])
                make_folders_durable(plans)
                self.manager.create(key, config, wall_ms=self.wall_ms, folder=plans[0])
            case 1:
                self.manager.create(key, config, wall_ms=self.wall_ms, topic_id=topic_id)
            case _:
                self.manager.create(key, config, wall_ms=self.wall_ms, topic_id=topic_id, sync=False)
        self._serials[key], self._sequences[key] = [], 0
        self._starts[key] = 0

    def _append(self) -> None:
        key = self.chance.choice((FLUSHED, LAZY, LAZY, COMPACTED, FOLLOWER, REBORN))
        log = self.manager.logs[key]
        if log.awaits_checkpoint:
            self._checkpoint()
        for _ in range(self.chance.randint(1, 4)):
            self._append_one(key, log)
            if key == FLUSHED:
                self._flush_log(key)

    def _append_one(self, key: TopicPartition, log: Log) -> None:
        self._serial += 1
        offset, serials, sequence = log.log_end_offset, self._serials[key], self._sequences[key]
        assert log.topic_id is not None
        epoch = self._epoch if key == FOLLOWER else 0
        builder = BatchBuilder()
        record_key = b"%d" % self.chance.randrange(RECORD_KEYS)
        builder.append(self.wall_ms, record_key, value_of(log.topic_id, self._serial))
        producer = (PRODUCER_ID, 0, sequence)
        before = serials[-1] if serials else 0
        facts = (offset, epoch, self._serial, before, sequence, record_key.decode())
        self.disk.mark("append", str(key), log.topic_id.hex, *facts)
        if key == FOLLOWER:
            batch = builder.build(offset, *producer, partition_leader_epoch=epoch)
            log.append_as_follower(batch, wall_ms=self.wall_ms)
        else:
            log.append_as_leader(builder.build(0, *producer), leader_epoch=epoch, wall_ms=self.wall_ms)
        serials.append(self._serial)
        self._sequences[key] = sequence + 1

    def _flush(self) -> None:
        self._flush_log(self.chance.choice(KEYS))

    def _flush_log(self, key: TopicPartition) -> None:
        log = self.manager.logs[key]
        plan = log.flush_plan()
        plan.run()
        log.mark_flushed(plan, wall_ms=self.wall_ms)
        assert log.topic_id is not None
        self.disk.mark("durable", str(key), log.topic_id.hex, plan.offset)

    def _checkpoint(self) -> None:
        for plan in self.manager.plan_checkpoints(self._high_watermarks()):
            if plan.run():
                self.manager.note_checkpoint(plan)

    def _truncate(self) -> None:
        """A new leader epoch: the follower removes some records, and gets others instead."""
        log, serials = self.manager.logs[FOLLOWER], self._serials[FOLLOWER]
        end = log.log_end_offset
        offset = self.chance.randint(max(self._starts[FOLLOWER], end - 8), end)
        assert log.topic_id is not None
        self.disk.mark("truncate", str(FOLLOWER), log.topic_id.hex, offset)
        for path in self.manager.truncate_to(log, offset, wall_ms=self.wall_ms).removable:
            self.disk.remove(path)
        self._epoch += 1
        removed = end - offset
        if removed:
            del serials[-removed:]
            self._sequences[FOLLOWER] -= removed
        if log.awaits_checkpoint:
            self._checkpoint()
        for _ in range(self.chance.randint(1, 3)):
            self._append_one(FOLLOWER, log)

    def _delete_records(self) -> None:
        key = self.chance.choice((FLUSHED, LAZY, REBORN))
        log = self.manager.logs[key]
        offset = self.chance.randint(self._starts[key], log.log_end_offset)
        assert log.topic_id is not None
        self._starts[key] = offset
        self.disk.mark("start", str(key), log.topic_id.hex, offset)
        log.advance_log_start_offset(offset, log.log_end_offset)
        self._checkpoint()
        for path in log.delete_old_segments(log.log_end_offset, self.wall_ms):
            self.disk.remove(path)

    def _compact(self) -> None:
        log = self.manager.logs[COMPACTED]
        self._flush_log(COMPACTED)
        self._checkpoint()
        clean_log(log, wall_ms=self.wall_ms)

    def _recreate(self) -> None:
        log = self.manager.logs[REBORN]
        assert log.topic_id is not None
        self.disk.mark("deleted", str(REBORN), log.topic_id.hex)
        self._deleted.add(log.topic_id)
        folder = self.manager.delete(REBORN)
        assert folder is not None
        removes_first = self.chance.random() < 0.5
        if removes_first:
            self.disk.remove_tree(folder)
        self._create(REBORN)
        if self.chance.random() < 0.7:
            for _ in range(self.chance.randint(1, 3)):
                log = self.manager.logs[REBORN]
                if log.awaits_checkpoint:
                    self._checkpoint()
                self._append_one(REBORN, log)
        if not removes_first:
            self.disk.remove_tree(folder)

    def _restart(self) -> None:
        """A clean shutdown and a start, or the end of the process alone and a start."""
        if self.chance.random() < 0.5:
            assert self.manager.close(self._high_watermarks(), broker_epoch=1, wall_ms=self.wall_ms) == []
        else:
            self.manager.abandon()
        self._open()

    def _open(self) -> None:
        options = options_for(self.directory, self.chance.getrandbits(30))
        self.manager = LogManager.open(self.disk, options, wall_ms=self.wall_ms)
        damaged = [str(log.topic_partition) for log in self.manager.logs.values() if log.damages or log.gap]
        assert self._may_have_damage or damaged == []
        self._may_have_damage = False
        self.manager.take_out_unidentified()
        for log in self.manager.logs.values():
            self.manager.resolve_gap(log, wall_ms=self.wall_ms)
        for folder in self.manager.removable_folders:
            self.disk.remove_tree(folder)
        for log in self.manager.logs.values():
            if log.awaits_checkpoint:
                self._checkpoint()

    def _open_again(self) -> None:
        """Start after a kill in the middle of a step, and complete or repeat what it interrupted."""
        self.disk.operations_left = None
        self.manager.abandon()
        self._open()
        for key in KEYS:
            log = self.manager.get(key)
            if log is not None and log.topic_id in self._deleted:
                folder = self.manager.delete(key)
                assert folder is not None
                self.disk.remove_tree(folder)
                log = None
            if log is None:
                self._create(key)
                continue
            assert log.topic_id is not None
            self.disk.mark("truncate", str(key), log.topic_id.hex, log.log_end_offset)
            self._serials[key] = [serial_of(record.value, log.topic_id) for record in read_all(log)]
            last = self._serials[key][-1:]
            entry = log.producers.producers.get(PRODUCER_ID)
            self._sequences[key] = entry.last_sequence + 1 if entry is not None and last else 0
            self._starts[key] = log.log_start_offset

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {key: log.log_end_offset for key, log in self.manager.logs.items()}


class Found(NamedTuple):
    header: BatchHeader
    offset: int
    value: bytes
    key: bytes


def read_all(log: Log) -> list[Found]:
    """Return all records of a log. Raises CorruptRecordFound."""
    found: list[Found] = []
    offset = log.log_start_offset
    while True:
        part = log.read(offset, 1 << 20, log.log_end_offset)
        assert part is not None
        if not part.records:
            return [each for each in found if each.offset >= log.log_start_offset]
        for position, header in batches(part.records):
            found += [
                Found(header, record.offset, record.value or b"", record.key or b"")
                for record in decode_records(part.records, position, header)
            ]
        offset = part.next_offset


def serial_of(value: bytes, topic_id: uuid.UUID) -> int:
    """Return the serial number of a record's value; -1 if it is one of another topic, or damaged."""
    parts = value.split(b":")
    if len(parts) != 3 or not parts[1].isdigit() or value != value_of(topic_id, int(parts[1])):
        return -1
    return int(parts[1])
