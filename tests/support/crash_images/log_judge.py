"""Opens the log directory in a crash image as a broker does, and compares it with what was promised.

Only the storage engine runs (``LogManager``), on a disk in memory: a whole broker takes a hundred times as
long. What is checked:

- the directory opens, with a bounded number of changes to the disk and its former id; no log fails;
- each log belongs to a topic that existed, and has only that topic's records;
- a log is a prefix of the log at some moment: each batch follows the one that it followed when it was
  written, and the first one is the log's first, or above it by a deletion that was asked for;
- what was flushed is there, unless it was truncated or deleted since;
- the epochs and the producer's state are those of the batches; the high watermark is within the log;
- the log accepts a record, and has it after a clean restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nilometer.simulation.disk import FolderNode
from nilometer.storage.directories.log_manager import LogManager
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
from nilometer.wire.records import BatchBuilder
from support.crash_images.images import mounted
from support.crash_images.log_scenario import (
    COMPACTED,
    PRODUCER_ID,
    options_for,
    read_all,
    serial_of,
    value_of,
)
from support.crash_images.recording import Mark
from support.logs.memory_disk import MemoryDisk

CHANGES_MAX = 1_000
"""Of the disk, while the directory is opened; a recording has some hundred files at most at a time."""
WALL_MS = 2_000_000


class Appended(NamedTuple):
    offset: int
    epoch: int
    serial: int
    before: int
    sequence: int
    record_key: str


class Topic:
    """What the marks say of one incarnation of a partition."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.by_serial: dict[int, Appended] = {}
        self.durable = 0
        """Every record below is promised."""
        self.durable_serials: tuple[int, ...] = ()
        self.start = 0
        """Records below may be gone."""
        self.is_deleted = False
        self.current: list[int] = []
        """The serial numbers of the log's records at the moment, in order."""

    def lower(self, offset: int) -> None:
        self.durable = min(self.durable, offset)
        while self.current and self.by_serial[self.current[-1]].offset >= offset:
            self.current.pop()


class Promises:
    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.directory_id: str | None = None
        self.count = 0

    def note(self, marks: Iterable[Mark]) -> None:
        for mark in marks:
            if mark.kind == "flag":
                continue
            self.count += 1
            if mark.kind == "identity":
                self.directory_id = str(mark.values[0])
                continue
            key, topic_id, *rest = mark.values
            numbers = [each for each in rest if isinstance(each, int)]
            if mark.kind == "created":
                self.topics[str(topic_id)] = Topic(str(key))
                continue
            topic = self.topics[str(topic_id)]
            match mark.kind:
                case "append":
                    appended = Appended(*numbers, record_key=str(rest[-1]))
                    topic.by_serial[appended.serial] = appended
                    topic.current.append(appended.serial)
                case "durable":
                    topic.durable = numbers[0]
                case "truncate":
                    topic.lower(numbers[0])
                case "start":
                    topic.start = numbers[0]
                case "deleted":
                    topic.is_deleted = True
                case _:
                    raise AssertionError(mark)


def judge(image: FolderNode, directory: str, promises: Promises) -> list[str]:
    """Return what is wrong with the image; its promises are those at the moment of the power cut."""
    disk = MemoryDisk()
    disk.root = mounted(image, directory.rpartition("/")[0])
    manager = LogManager.open(disk, options_for(directory, 1), wall_ms=WALL_MS)
    findings: list[str] = []
    if disk.operations > CHANGES_MAX:
        findings.append(f"the start changed the disk {disk.operations} times")
    findings += [f"{each.path} failed: {each.failure!r}" for each in manager.directories if each.failure]
    if promises.directory_id not in (None, found_id := manager.directories[0].identity.directory_id):
        findings.append(f"the directory's id is {found_id}, not {promises.directory_id}")
    manager.take_out_unidentified()
    for key, log in sorted(manager.logs.items()):
        manager.resolve_gap(log, wall_ms=WALL_MS)
        findings += [f"{key}: {each}" for each in _judge_log(manager, key, log, promises)]
    found = {log.topic_id.hex for log in manager.logs.values() if log.topic_id is not None}
    for topic_id, topic in promises.topics.items():
        if topic_id not in found and topic.durable > topic.start and not topic.is_deleted:
            findings.append(f"{topic.key}: the log with flushed records is gone")
    return findings or _use(disk, manager, directory)


def _judge_log(manager: LogManager, key: TopicPartition, log: Log, promises: Promises) -> list[str]:
    assert log.topic_id is not None
    topic = promises.topics.get(log.topic_id.hex)
    if topic is None or topic.key != str(key):
        return [f"topic id {log.topic_id} was not created"]
    found = read_all(log)
    records = [topic.by_serial.get(serial_of(each.value, log.topic_id)) for each in found]
    for each, record in zip(found, records, strict=True):
        if record is None or record.offset != each.offset:
            return [f"offset {each.offset} has a record that was not written there: {each.value[:60]!r}"]
        if each.header.partition_leader_epoch != record.epoch:
            return [f"offset {each.offset} has epoch {each.header.partition_leader_epoch}"]
    kept = [record for record in records if record is not None]
    findings = _judge_order(key, log, topic, kept) + _judge_promise(key, log, topic, kept)
    for record in kept:
        if log.epochs.epoch_for_offset(record.offset) != record.epoch:
            findings.append(f"offset {record.offset} of epoch {record.epoch} is not in {log.epochs.entries}")
            break
    entry = log.producers.producers.get(PRODUCER_ID)
    last = entry.last_sequence if entry is not None else -1
    if kept and key != COMPACTED and last != kept[-1].sequence:
        findings.append(f"the producer's last sequence is {last}, not {kept[-1].sequence}")
    watermark = manager.initial_high_watermark(key)
    if not log.log_start_offset <= watermark <= log.log_end_offset:
        findings.append(f"high watermark {watermark} is not in the log")
    return findings


def _judge_order(key: TopicPartition, log: Log, topic: Topic, kept: Sequence[Appended]) -> list[str]:
    if key == COMPACTED:
        offsets = [each.offset for each in kept]
        return [] if offsets == sorted(set(offsets)) else [f"offsets are not in order: {offsets}"]
    if kept and kept[0].offset > log.log_start_offset:
        return [f"the log begins at {kept[0].offset}, its start is {log.log_start_offset}"]
    for before, record in pairwise(kept):
        if record.before != before.serial:
            return [
                f"serial {record.serial} at {record.offset} (epoch {record.epoch}) follows serial "
                f"{before.serial} (epoch {before.epoch}), not {record.before}"
            ]
    return []


def _judge_promise(key: TopicPartition, log: Log, topic: Topic, kept: Sequence[Appended]) -> list[str]:
    if topic.is_deleted:
        return []
    findings: list[str] = []
    if log.log_start_offset > topic.start:
        findings.append(f"the log start offset is {log.log_start_offset}, above {topic.start}")
    promised = [topic.by_serial[serial] for serial in topic.current]
    promised = [each for each in promised if topic.start <= each.offset < topic.durable]
    if key == COMPACTED:
        promised = list({each.record_key: each for each in promised}.values())
        newer = {each.record_key: each.offset for each in kept}
        lost = [each.offset for each in promised if newer.get(each.record_key, -1) < each.offset]
    else:
        there = {each.serial for each in kept}
        lost = [each.offset for each in promised if each.serial not in there]
    if lost:
        findings.append(f"flushed records are lost: {lost[:10]} of {topic.durable}, end {log.log_end_offset}")
    return findings


def _use(disk: MemoryDisk, manager: LogManager, directory: str) -> list[str]:
    """Append a record to each log, and restart."""
    for plan in manager.plan_checkpoints({}):
        if plan.run():
            manager.note_checkpoint(plan)
    written: dict[TopicPartition, int] = {}
    for key, log in manager.logs.items():
        assert log.topic_id is not None
        builder = BatchBuilder()
        builder.append(WALL_MS, b"0", value_of(log.topic_id, 0))
        info = log.append_as_leader(builder.build(0), leader_epoch=1_000, wall_ms=WALL_MS)
        written[key] = info.first_offset
    failures = manager.close({}, broker_epoch=1, wall_ms=WALL_MS)
    if failures:
        return [f"stopping failed: {failures}"]
    disk.crash_process()
    again = LogManager.open(disk, options_for(directory, 2), wall_ms=WALL_MS)
    findings: list[str] = []
    for key, offset in written.items():
        log = again.logs.get(key)
        if log is None or [each.offset for each in read_all(log)][-1:] != [offset]:
            findings.append(f"{key}: the record written at {offset} is not there after a restart")
    again.abandon()
    return findings
