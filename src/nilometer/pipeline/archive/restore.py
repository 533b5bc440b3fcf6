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

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c
from msgspec import structs

from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.pipeline.archive.archive_target import explained
from nilometer.pipeline.archive.replica_folders import LEADER_EPOCH, EmptyReplica, ReplicaFolders
from nilometer.pipeline.errors import SourceError
from nilometer.pipeline.source.log_folders.places import (
    ArchivedPartition,
    find_archived,
)
from nilometer.pipeline.source.log_folders.storages import open_folder, shown_folder
from nilometer.runtime import Disk
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

CHUNK_BYTES = 1024 * 1024
"""So much is read, and appended, at once; more for a larger batch."""
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
        folders = ReplicaFolders(places, {one.part for one in wanted}, opened)
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
                pieces = _joined(_restored(one, history))
                folders.write(one.part, replicas[one.part], one.start, pieces)
                folders.note_end(one.part, one.end)
                one.replicas = len(replicas[one.part])
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
    replicas: Mapping[TopicPartition, Sequence[EmptyReplica]], parts: Sequence[TopicPartition]
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
