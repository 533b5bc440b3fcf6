"""Puts archived topics back: into the empty partitions of brokers that do not run.

Records keep their offsets, timestamps, keys, values and headers. What only the former cluster knows is left
out: leader epochs, producer ids (the new cluster gives the same numbers to others, whose batches would be
taken for repeated ones) and transactions. Of these the committed records are ordinary ones, the aborted are
gone; the restored log ends where the first transaction begins that had not ended in the archive. Offsets
without a record are an empty batch, so that the log has no gap.

Invariants: every segment is read and checked before a partition is written; a partition that has ever had a
record is not written; a run that fails leaves all of them empty.
"""

from __future__ import annotations

import os
import posixpath
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c
from msgspec import structs

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.pipeline.archive.archive_target import explained
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import (
    ArchivedPartition,
    find_archived,
    find_replicas,
)
from nilometer.pipeline.source.log_folders.storages import is_uri, open_folder, shown_folder
from nilometer.runtime import Disk, LockHeld, Runtime
from nilometer.storage import names
from nilometer.storage.directories.log_directory import UNKNOWN_BROKER_EPOCH, read_broker_epoch
from nilometer.storage.directories.log_manager import LogManager, ManagerOptions, NoLogDirectory
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.flushing import flush_all
from nilometer.storage.names import TopicPartition
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    batches,
    check_batch,
    pack_batch,
    read_header,
    without_producer,
)
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    from nilometer.pipeline.source.log_folders.archive_manifest import ArchivedSegment
    from nilometer.runtime import File
    from nilometer.storage.log import Log

CHUNK_BYTES = 1024 * 1024
"""So much is read, and appended, at once; more for a larger batch."""
LEADER_EPOCH = 0
"""That of all restored batches: no leader of the new partition had a lower one."""
_EMPTY_MAX = 1 << 30
"""The most offsets of one empty batch."""
_PIECE_MAX = 1 << 30
"""The most offsets of what is appended at once: a segment has at most twice as many."""


@dataclass(slots=True)
class RestoredPartition:
    """What was put back of one partition, and what was not."""

    archived: ArchivedPartition
    part: TopicPartition
    """The partition that has the records now."""
    end: int = 0
    """The offset after the last one."""
    replicas: int = 0
    """How many replicas were written."""
    records: int = 0
    aborted: int = 0
    """Records that are left out: their transaction was aborted."""
    unfinished: int = 0
    """Records that are left out: their transaction, or one that began before them, has no end in the archive.
    """
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ranges [first, end) of offsets that the archive does not have."""

    @property
    def start(self) -> int:
        return self.archived.start


def restore(
    source: str,
    topics: Sequence[str],
    places: Sequence[str],
    *,
    name: str | None = None,
    topic_id: str | None = None,
    allows_missing: bool = False,
    only_here: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> list[RestoredPartition]:
    """Write archived ``topics`` into all their replicas in ``places``, folders of brokers that do not run.

    ``name``: the topic that gets the records of the only one of ``topics``. ``topic_id``: the one to take of
    several archived topics of a name. ``allows_missing``: offsets and partitions that the archive lacks are
    no error. ``only_here``: partitions without a replica in ``places`` are left out. Raises PipelineError;
    then all that was written is removed again, or the message names the folders that still have some of it.
    """
    _require_no_internal([*topics, *([] if name is None else [name])])
    found = _chosen(source, topics, topic_id)
    wanted = [
        RestoredPartition(one, one.part if name is None else TopicPartition(name, one.part.partition))
        for one in found
    ]
    for one in wanted:
        one.missing = one.archived.gaps
    if not allows_missing:
        _require_all(found)
    with ExitStack() as opened:
        folders = _Folders(places, {one.part for one in wanted}, opened)
        replicas = {one.part: folders.empty_replicas(one.part) for one in wanted}
        if only_here and any(replicas.values()):
            wanted = [one for one in wanted if replicas[one.part]]
        _require_replicas(replicas, [one.part for one in wanted])
        histories: list[_History] = []
        for one in wanted:  # all that may be refused, before the first is written
            say(f"{one.archived.part}: checking")
            histories.append(_History.read(one.archived))
        with folders.undone_on_error():
            for one, history in zip(wanted, histories, strict=True):
                say(f"{one.part}: restoring")
                folders.write(replicas[one.part], one, history)
            folders.finish()
    return wanted


def _require_no_internal(topics: Sequence[str]) -> None:
    if internal := sorted(set(topics) & set(INTERNAL_TOPICS)):
        raise SourceError(
            f"{internal[0]} belongs to the cluster that wrote it: offsets of groups and states of "
            "transactions are not restored"
        )


def _chosen(source: str, topics: Sequence[str], topic_id: str | None) -> list[ArchivedPartition]:
    """Return the archived partitions of ``topics``. Raises SourceError if they are not there, or several."""
    with explained(source):
        archived = find_archived(source, topics)
    for topic in topics:
        known = sorted({one.topic_id for one in archived if one.part.topic == topic})
        if not known or (topic_id is not None and topic_id not in known):
            raise SourceError(
                f"{shown_folder(source)} has no archive of topic {topic}"
                f"{f' with the id {topic_id}' if known else ''}: "
                "`nilometer archive list` shows what it has"
            )
        if topic_id is None and len(known) > 1:
            raise SourceError(
                f"several topics named {topic} are archived: choose one with --topic-id {', '.join(known)}"
            )
    return [one for one in archived if topic_id in (None, one.topic_id)]


def _require_all(archived: Sequence[ArchivedPartition]) -> None:
    """Raises SourceError if offsets are missing between others, or partitions between others."""
    by_topic: dict[str, set[int]] = {}
    for one in archived:
        by_topic.setdefault(one.part.topic, set()).add(one.part.partition)
        for first, end in one.gaps:
            raise SourceError(
                f"the archive of {one.part} lacks the offsets {first} to {end - 1}: --allow-missing restores "
                "the others, at their offsets"
            )
    for topic, numbers in by_topic.items():
        if lacking := sorted(set(range(max(numbers))) - numbers):
            raise SourceError(
                f"the archive has no records of {topic}-{lacking[0]}, but of {topic}-{max(numbers)}: "
                "--allow-missing restores the others"
            )


def _require_replicas(
    replicas: Mapping[TopicPartition, Sequence[_Replica]], parts: Sequence[TopicPartition]
) -> None:
    if lacking := [part for part in parts if not replicas[part]]:
        raise SourceError(
            f"no broker has a replica of {lacking[0]} here: create the topic with as many partitions as the "
            "archive has, then stop the brokers. If it is on other machines, --only-here leaves it to them"
        )


# Reading an archived partition, whose batches are checked each time.


def _batches(archived: ArchivedPartition) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Yield (buffer, position, header) of each batch, in the order of offsets. Raises SourceError."""
    disk, folder = open_folder(archived.folder)
    offset = archived.start
    for segment in archived.chain:
        for buffer, position, header in _batches_of(disk, folder, segment):
            if header.next_offset > offset:  # segments may overlap
                offset = header.next_offset
                yield buffer, position, header


def _batches_of(
    disk: Disk, folder: str, segment: ArchivedSegment
) -> Iterator[tuple[bytes, int, BatchHeader]]:
    stored, path = segment.log, posixpath.join(folder, segment.log.name)
    with explained(path):
        try:
            file = disk.open(path, writable=False)
        except FileNotFoundError:
            raise SourceError(f"{path} is missing in the archive") from None
    with closing(file):
        position = checksum = 0
        offset, wanted = segment.base_offset, CHUNK_BYTES
        while position < stored.bytes:
            buffer, end = _read(file, position, min(wanted, stored.bytes - position)), 0
            try:
                for at, header in batches(buffer):
                    check_batch(buffer, at, header)
                    if header.base_offset != offset:
                        raise SourceError(
                            f"{path} is damaged: offset {offset} must follow, and not {header.base_offset}"
                        )
                    offset, end = header.next_offset, at + header.size
                    yield buffer, at, header
                if not end and (wanted := read_header(buffer).size) <= len(buffer):
                    raise SourceError(f"{path} is damaged at byte {position}")
            except KafkaError as error:
                raise SourceError(f"{path} is damaged at byte {position + end}: {error.message}") from error
            if not end and position + wanted > stored.bytes:
                raise SourceError(f"{path} is damaged: its last batch is not complete")
            checksum = crc32c(buffer[:end], checksum)
            position += end
            wanted = CHUNK_BYTES if end else wanted
        if (checksum, offset, file.size()) != (stored.crc32c, segment.end_offset, stored.bytes):
            raise SourceError(f"{path} is damaged: it is not what the manifest says")


def _read(file: File, position: int, size: int) -> bytes:
    with explained(file.path):
        data = file.read_at(position, size)
    if len(data) < size:
        raise SourceError(f"{file.path} is damaged: it ends at byte {position + len(data)}")
    return data


@dataclass(frozen=True, slots=True)
class _History:
    """How the transactions of a partition ended."""

    aborted: frozenset[tuple[int, int]]
    """(producer id, first offset)"""
    cut: frozenset[tuple[int, int]]
    """Those before missing offsets, among which their ends may be; (producer id, first offset)."""
    stable_end: int
    """Where the first one begins that did not end; otherwise the end of the archive."""

    @classmethod
    def read(cls, archived: ArchivedPartition) -> _History:
        """Raises SourceError if a file is damaged."""
        running = _Running(archived.start)
        aborted: set[tuple[int, int]] = set()
        cut: set[tuple[int, int]] = set()
        for buffer, position, header in _batches(archived):
            cut.update(running.cut_before(header))
            ended = running.note(buffer, position, header)
            if ended is not None and ended[1] is ControlType.ABORT:
                aborted.add((header.producer_id, ended[0]))
        stable_end = min(running.first_offsets.values(), default=archived.end)
        return cls(frozenset(aborted), frozenset(cut), stable_end)


class _Running:
    """The transactions that have begun, and not ended yet."""

    def __init__(self, start: int) -> None:
        self.first_offsets: dict[int, int] = {}
        """By producer id."""
        self._end = start

    def cut_before(self, header: BatchHeader) -> list[tuple[int, int]]:
        """Forget the transactions that run where offsets are missing before this batch; return them."""
        cut = list(self.first_offsets.items()) if header.base_offset > self._end else []
        for producer, _ in cut:
            del self.first_offsets[producer]
        self._end = header.next_offset
        return cut

    def note(self, buffer: bytes, position: int, header: BatchHeader) -> tuple[int, ControlType] | None:
        """Note a batch; return the first offset and the end of the transaction that it ends."""
        if not header.is_control:
            if header.is_transactional:
                self.first_offsets.setdefault(header.producer_id, header.base_offset)
            return None
        marker = read_end_txn_marker(buffer, position, header)
        if marker is None or (first := self.first_offsets.pop(header.producer_id, None)) is None:
            return None
        return first, marker.control_type


def _restored(one: RestoredPartition, history: _History) -> Iterator[tuple[int, bytes]]:
    """Yield the batches of the restored log, each with the offset after it.

    Count in ``one`` what they have and what is left out.
    """
    running = _Running(one.start)
    offset = one.start
    for buffer, position, header in _batches(one.archived):
        running.cut_before(header)
        running.note(buffer, position, header)
        if header.is_control:
            continue
        count = min(header.records_count, header.next_offset - one.start)
        producer = header.producer_id
        transaction = (producer, running.first_offsets[producer]) if header.is_transactional else None
        if header.base_offset >= history.stable_end or transaction in history.cut:
            one.unfinished += count
            continue
        if transaction in history.aborted:
            one.aborted += count
            continue
        yield from _empty_batches(offset, header.base_offset)
        changed = structs.replace(without_producer(header), partition_leader_epoch=LEADER_EPOCH)
        with memoryview(buffer) as view:
            records = view[position + HEADER_BYTES : position + header.size]
            yield header.next_offset, pack_batch(changed, records)
        one.records += count
        offset = header.next_offset
    yield from _empty_batches(offset, history.stable_end)
    one.end = max(offset, history.stable_end)


def _empty_batches(offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches without a record for the offsets [offset, end), each with the offset after it."""
    while offset < end:
        size = min(end - offset, _EMPTY_MAX)
        header = BatchHeader(
            base_offset=offset,
            batch_length=0,
            partition_leader_epoch=LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=size - 1,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
            records_count=0,
        )
        offset += size
        yield offset, pack_batch(header, b"")


# The folders of the brokers, whose logs are opened as a broker opens them.


class _Folders:
    def __init__(self, places: Sequence[str], parts: set[TopicPartition], opened: ExitStack) -> None:
        """Open the directories that have replicas of ``parts``; ``opened`` closes them. Raises SourceError.

        Nothing is changed in a directory whose broker runs, or did not stop in order.
        """
        if uri := next((one for one in places if is_uri(one)), None):
            raise SourceError(f"{shown_folder(uri)} is no folder of this machine, where brokers have theirs")
        self._runtime = Runtime.system()
        self._ends: dict[TopicPartition, int] = {}
        self._written: list[_Replica] = []
        found = find_replicas(dict.fromkeys(map(os.path.realpath, places)))
        directories = {one.directory.place: one.directory for one in found if one.part in parts}
        for place, view in sorted(directories.items()):
            if read_broker_epoch(self._runtime.disk, posixpath.join(place, names.CLEAN_SHUTDOWN)) is None:
                raise SourceError(
                    f"the broker of {place} runs, or it did not stop in order: stop it, after another start "
                    "if it was killed"
                )
            if view.node_id is None:
                raise SourceError(f"{place} has no readable {names.META_PROPERTIES}: it is of no broker")
        self._directories = [
            _Directory(self._runtime, place, view.node_id or 0) for place, view in sorted(directories.items())
        ]
        for directory in self._directories:
            directory.open()
            opened.callback(directory.close, self._ends)

    def empty_replicas(self, part: TopicPartition) -> list[_Replica]:
        """Return the replicas of a partition that has never had a record. Raises SourceError for another."""
        replicas = [_Replica(one, part) for one in self._directories if part in one.manager.logs]
        for one in replicas:
            if one.log.log_end_offset or one.log.size:
                raise SourceError(
                    f"{one.log.folder} is not empty: its next offset is {one.log.log_end_offset}. "
                    "Only a new topic is restored; --as gives it another name"
                )
        return replicas

    @contextmanager
    def undone_on_error(self) -> Generator[None]:
        """Empty all that was written if an error occurs."""
        try:
            yield
        except BaseException as error:
            failed = [one.folder for one in self._written if one.log.failure is not None]
            self._ends.update(dict.fromkeys(self._ends, 0))
            with _uninterrupted():
                left = self._undo()
            if left:
                raise SourceError(
                    f"{error}. What was restored could not be removed from {', '.join(left)}: delete the "
                    "topic, and create it again"
                ) from error
            if isinstance(error, (KafkaError, OSError)):
                place = ", ".join(failed) or "a log"
                raise SourceError(f"{place} could not be written: {error}") from error
            raise

    def _undo(self) -> list[str]:
        """Empty all that was written; return the folders of the logs for which that failed."""
        left: list[str] = []
        # First those that could not be written: that makes room on a full disk, which the others need.
        for replica in sorted(self._written, key=lambda one: one.log.failure is None):
            try:
                replica.empty()
            except (SourceError, KafkaError, OSError):
                left.append(replica.folder)
        return left

    def finish(self) -> None:
        """Note in the checkpoints what was written. Raises OSError."""
        for directory in self._directories:
            directory.write_checkpoints(self._ends)

    def write(self, replicas: Sequence[_Replica], one: RestoredPartition, history: _History) -> None:
        """Write all replicas of a partition. Raises SourceError, KafkaError, OSError."""
        for replica in replicas:
            self._written.append(replica)
            replica.begin(one.start)
        for records in _joined(_restored(one, history)):
            for replica in replicas:
                replica.append(records)
        for replica in replicas:
            replica.flush()
        one.replicas = len(replicas)
        self._ends[one.part] = one.end


@contextmanager
def _uninterrupted() -> Generator[None]:
    """Ignore further signals to end: a user may press Ctrl-C twice. Other threads than the first get none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


class _Directory:
    """A log directory of a stopped broker."""

    def __init__(self, runtime: Runtime, place: str, node_id: int) -> None:
        self._runtime = runtime
        self._options = ManagerOptions(node_id=node_id, directories=[place], entropy=runtime.entropy)
        self._place = place
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        self._manager: LogManager | None = None

    @property
    def manager(self) -> LogManager:
        """Raises SourceError if it could not be opened again."""
        if self._manager is None:
            raise SourceError(f"{self._place} is closed")
        return self._manager

    @property
    def wall_ms(self) -> int:
        return self._runtime.clock.wall_ms()

    def open(self) -> None:
        """Raises SourceError; then it stays closed."""
        manager = self._open()
        if manager.previous_broker_epoch is not None:
            self._broker_epoch = manager.previous_broker_epoch
        if manager.has_gaps or manager.duplicates or any(manager.seconds.items()):
            self.close({})
            raise SourceError(
                f"{self._place} has logs that are damaged, or being moved: start its broker, and stop it "
                "when `nilometer status` shows no such replica"
            )

    def _open(self) -> LogManager:
        try:
            self._manager = LogManager.open(self._runtime.disk, self._options, wall_ms=self.wall_ms)
        except (LockHeld, CorruptCheckpoint, NoLogDirectory) as error:
            raise SourceError(f"{self._place} cannot be opened: {error}") from error
        return self._manager

    def open_without(self, folder: str) -> None:
        """Open it again after a write has failed, without the records in ``folder``. Raises SourceError,
        OSError; then the next start of its broker recovers it."""
        manager, self._manager = self.manager, None
        manager.abandon()
        disk = self._runtime.disk
        for name in disk.list_directory(folder):
            if name != names.PARTITION_METADATA:
                disk.remove(posixpath.join(folder, name))
        self._open()

    def close(self, ends: Mapping[TopicPartition, int]) -> None:
        """``ends``: the high watermarks of restored partitions. Raises SourceError."""
        if self._manager is None:
            return
        if errors := self.manager.close(ends, broker_epoch=self._broker_epoch, wall_ms=self.wall_ms):
            raise SourceError(
                f"{self._place} could not be closed in order: {errors[0]}. Its broker recovers it at the "
                "next start"
            )

    def write_checkpoints(self, ends: Mapping[TopicPartition, int]) -> None:
        """Raises OSError."""
        for plan in self.manager.plan_checkpoints(ends):
            if plan.run():
                self.manager.note_checkpoint(plan)


class _Replica:
    def __init__(self, directory: _Directory, part: TopicPartition) -> None:
        self._directory = directory
        self._part = part
        self.folder = self.log.folder

    @property
    def log(self) -> Log:
        return self._directory.manager.logs[self._part]

    def begin(self, offset: int) -> None:
        """Let the empty log start at ``offset``, without the epochs of those who have led it."""
        manager, log = self._directory.manager, self.log
        truncation = manager.truncate_fully_and_start_at(log, offset, wall_ms=self._directory.wall_ms)
        for path in truncation.removable:
            log.files.disk.remove(path)
        self._directory.write_checkpoints({})  # until then a truncated log accepts nothing

    def append(self, records: bytes) -> None:
        """Raises KafkaError."""
        self.log.append_as_follower(records, wall_ms=self._directory.wall_ms)

    def flush(self) -> None:
        """Raises OSError."""
        flush_all(self.log, self._directory.wall_ms)

    def empty(self) -> None:
        """Remove what was appended. Raises SourceError, OSError."""
        if self.log.failure is not None:  # it cannot be written any more
            self._directory.open_without(self.folder)
        self.begin(0)


def _joined(restored: Iterator[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the batches, given with the offset after each, in pieces of about ``CHUNK_BYTES``."""
    piece: list[bytes] = []
    size = first = 0
    for end, batch in restored:
        if size >= CHUNK_BYTES or end - first > _PIECE_MAX:
            if piece:
                yield b"".join(piece)
            piece, size, first = [], 0, read_header(batch).base_offset
        piece.append(batch)
        size += len(batch)
    if piece:
        yield b"".join(piece)
