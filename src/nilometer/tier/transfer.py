"""Copies what the store has of a partition to the folder of another topic, from store to store; checks it.

The records stay as they are: offsets, timestamps, keys, values, headers, transactions. What only the former
cluster knows changes:

- all batches have the leader epoch :data:`LEADER_EPOCH`, since no leader of the new topic has a lower one;
- the state of the producers is empty, because the new cluster gives the same ids to others;
- a transaction whose end is not in the store is aborted there: a last segment of the new folder has the
  markers. A reader of committed records sees no record of it.

A piece of a segment is in memory at a time, and nothing is written to disks. An object that is copied has a
new name each time, and no reader sees it until a manifest names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from crc32c import crc32c

from nilometer.runtime.object_store import ObjectNotFound, ObjectStore
from nilometer.storage.producers import CorruptSnapshot, SnapshotEntry, decode_snapshot, encode_snapshot
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.tier.catalogue import StoredPartition, read_partition
from nilometer.tier.format import (
    DamagedObject,
    IndexSections,
    RemoteSegment,
    encode_index,
    parse_indexes,
)
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    check_batch,
    read_header,
    set_leader_epoch,
)
from nilometer.wire.records import ControlType, EndTxnMarker, build_end_txn_marker, read_end_txn_marker

LEADER_EPOCH = 0
PIECE_BYTES = 4 << 20
"""So much of a segment is read at once; more for a larger batch."""
SEGMENTS_AT_ONCE = 4
NO_PRODUCERS = encode_snapshot(())

Read = Callable[[int, int], Awaitable[bytes]]
"""Returns so many bytes from a position in a file."""


class CheckedPiece(msgspec.Struct, frozen=True):
    """Whole batches of a segment, whose CRCs and offsets are right."""

    records: bytearray
    batches: list[tuple[int, BatchHeader]]
    """Each with where it begins."""

    @property
    def count(self) -> int:
        """How many records they have, control records not counted."""
        return sum(header.records_count for _, header in self.batches if not header.is_control)


class LogSummary:
    """What the pieces of a log file say, summed up while they are read."""

    def __init__(self, base_offset: int) -> None:
        self.end_offset = base_offset
        self.bytes = self.crc = self.records = 0
        """Of the records control records are some, too."""
        self.max_timestamp = -1
        self.epochs = list[tuple[int, int]]()
        self.aborts = set[tuple[int, int]]()
        """(Producer id, offset) of each abort marker."""

    def add(self, piece: CheckedPiece) -> None:
        self.crc = crc32c(piece.records, self.crc)
        self.bytes += len(piece.records)
        for at, header in piece.batches:
            if not self.epochs or header.partition_leader_epoch != self.epochs[-1][0]:
                self.epochs.append((header.partition_leader_epoch, header.base_offset))
            self.end_offset = header.next_offset
            self.records += header.records_count
            self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
            if header.is_control:
                marker = read_end_txn_marker(piece.records, at, header)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    self.aborts.add((header.producer_id, header.base_offset))

    def require(self, segment: RemoteSegment, name: str) -> None:
        """Raise DamagedObject if the file is not that of the segment, as far as its manifest tells."""
        found = (self.crc, self.records, self.end_offset, tuple(self.epochs))
        if segment.log_crc is not None and found != (
            segment.log_crc,
            segment.records,
            segment.end_offset,
            segment.epochs,
        ):
            raise DamagedObject(f"{name} is damaged: it is not what its manifest says")


async def checked_pieces(
    store: ObjectStore, folder: str, segment: RemoteSegment
) -> AsyncIterator[CheckedPiece]:
    """Read the segment's log file. Raises ObjectStoreError, DamagedObject."""
    name, offset, summary = folder + segment.log_name, segment.base_offset, LogSummary(segment.base_offset)

    async def read(position: int, length: int) -> bytes:
        return await store.get(name, position, length)

    async for piece in pieces_of(read, name, segment.log_bytes, offset):
        summary.add(piece)
        yield piece
    if summary.end_offset > segment.end_offset:
        raise DamagedObject(f"{name} is damaged: its offsets go on to {summary.end_offset - 1}")
    summary.require(segment, name)


async def pieces_of(read: Read, name: str, size: int, base_offset: int) -> AsyncIterator[CheckedPiece]:
    """Read a log file of so many bytes. Raises DamagedObject, and what ``read`` raises."""
    position, offset, rest = 0, base_offset, b""
    while position < size:
        length = min(max(PIECE_BYTES, _missing(rest)), size - position)
        data = await read(position, length)
        if len(data) != length:
            raise DamagedObject(f"{name} ends at byte {position + len(data)} instead of {size}")
        position += length
        records, found, end = bytearray(rest + data), list[tuple[int, BatchHeader]](), 0
        try:
            for at, header in batches(records):
                check_batch(records, at, header)
                if header.base_offset < offset:
                    raise DamagedObject(f"{name}: offset {header.base_offset} where {offset} is the least")
                found.append((at, header))
                offset, end = header.next_offset, at + header.size
        except KafkaError as error:
            at = position - len(records) + end
            raise DamagedObject(f"{name} is damaged at byte {at}: {error.message}") from error
        rest = bytes(records[end:])
        del records[end:]
        yield CheckedPiece(records, found)
    if rest:
        raise DamagedObject(f"{name} is damaged: its last batch is not whole")


def _missing(rest: bytes) -> int:
    """Return how many bytes the batch lacks that begins in ``rest``."""
    return read_header(rest).size - len(rest) if len(rest) >= HEADER_BYTES else 0


async def checked_index(store: ObjectStore, folder: str, segment: RemoteSegment) -> IndexSections:
    """Read the segment's indexes. Raises ObjectStoreError, DamagedObject."""
    name = folder + segment.index_name
    objects = [await store.get(folder + one) for one in segment.index_names]
    sections = segment.sections(objects, folder)
    parse_indexes(sections, segment.base_offset, name)
    _open_transactions(sections, name)
    return sections


class Copied(msgspec.Struct, frozen=True):
    """What was copied of one partition, under its new names."""

    start_offset: int
    """The first offset that can be read."""
    segments: tuple[RemoteSegment, ...]
    records: int
    """Those of all batches copied: some may be below the log start offset."""
    aborted: int
    """How many transactions were aborted because their ends are not in the store."""


async def copy_partition(
    source: ObjectStore,
    partition: StoredPartition,
    target: ObjectStore,
    folder: str,
    *,
    new_name: Callable[[], str],
    room: asyncio.Semaphore,
    on_bytes: Callable[[int], None],
) -> Copied:
    """Copy the segments to ``folder``, with the markers of transactions that have no end.

    ``new_name`` returns a random part of objects' names; ``room`` bounds how many segments are copied at
    once; ``on_bytes`` is told what was copied. If brokers give segments up meanwhile, what is then there is
    copied. Raises ObjectStoreError, DamagedObject.
    """
    copies = dict[str, tuple[RemoteSegment, int]]()

    async def copy(segment: RemoteSegment) -> None:
        copies[segment.attempt] = await _copy(
            source, partition.folder, segment, target, folder, new_name(), on_bytes
        )

    async def copy_all() -> tuple[RemoteSegment, int] | None:
        try:
            async with asyncio.TaskGroup() as group:
                for one in partition.segments:
                    if one.attempt not in copies:
                        await room.acquire()
                        # Not within the task: one that is cancelled before its first step would keep it.
                        group.create_task(copy(one)).add_done_callback(lambda _: room.release())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return await _end_transactions(source, partition, target, folder, new_name())

    while True:
        try:
            last = await copy_all()
            break
        except ObjectNotFound as error:
            before, partition = partition, await _read_again(source, partition)
            is_given_up = error.name in _objects(before) - _objects(partition)
            if not is_given_up or not partition.segments or partition.gaps != before.gaps:
                raise
    found = [copies[one.attempt] for one in partition.segments]
    segments = [segment for segment, _ in found]
    if last is not None:
        segments.append(last[0])
    aborted = 0 if last is None else last[1]
    return Copied(partition.start_offset, tuple(segments), sum(records for _, records in found), aborted)


async def _copy(
    source: ObjectStore,
    source_folder: str,
    segment: RemoteSegment,
    target: ObjectStore,
    folder: str,
    attempt: str,
    on_bytes: Callable[[int], None],
) -> tuple[RemoteSegment, int]:
    sections = await checked_index(source, source_folder, segment)
    index = encode_index(sections._replace(producers=NO_PRODUCERS))
    entry = RemoteSegment(
        segment.base_offset,
        segment.last_offset,
        segment.max_timestamp,
        segment.log_bytes,
        len(index),
        segment.has_aborted,
        attempt,
        ((LEADER_EPOCH, segment.base_offset),),
        segment.last_crc,
    )
    records = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal records
        async for piece in checked_pieces(source, source_folder, segment):
            records += piece.count
            for at, _ in piece.batches:
                set_leader_epoch(piece.records, at, LEADER_EPOCH)
            if piece.records:
                yield bytes(piece.records)
            on_bytes(len(piece.records))

    await target.upload(folder + entry.log_name, parts())
    await target.put(folder + entry.index_name, index)
    return entry, records


def _open_transactions(sections: IndexSections, name: str) -> list[SnapshotEntry]:
    """Return the producers whose transactions are open at the segment's end, by the first offset of these."""
    if not sections.producers:
        return []
    try:
        entries = {one.producer_id: one for one in decode_snapshot(sections.producers)}  # the last one counts
    except CorruptSnapshot as error:
        raise DamagedObject(f"{name}: {error}") from error
    found = [one for one in entries.values() if one.current_txn_first_offset >= 0]
    return sorted(found, key=lambda one: one.current_txn_first_offset)


async def _end_transactions(
    source: ObjectStore, partition: StoredPartition, target: ObjectStore, folder: str, attempt: str
) -> tuple[RemoteSegment, int] | None:
    """Write a segment that aborts the transactions which are open at the end; None if there are none."""
    if not partition.segments:
        return None
    before = partition.segments[-1]
    name = partition.folder + before.index_name
    sections = await checked_index(source, partition.folder, before)
    if partition.is_archive and not sections.producers:
        raise DamagedObject(f"{name} does not tell which transactions are open: restore it to disks")
    running = _open_transactions(sections, name)
    if not running:
        return None
    base, timestamp = before.end_offset, max(before.max_timestamp, 0)
    markers, aborted = list[bytes](), list[bytes]()
    for offset, one in enumerate(running, start=base):
        marker = EndTxnMarker(ControlType.ABORT, max(one.coordinator_epoch, 0), timestamp)
        markers.append(
            build_end_txn_marker(
                marker,
                producer_id=one.producer_id,
                producer_epoch=one.producer_epoch,
                base_offset=offset,
                partition_leader_epoch=LEADER_EPOCH,
            )
        )
        following = running[offset - base + 1 :]
        stable = following[0].current_txn_first_offset if following else offset + 1
        aborted.append(AbortedTxn(one.producer_id, one.current_txn_first_offset, offset, stable).encode())
    log, index = b"".join(markers), encode_index(IndexSections(b"", b"", b"".join(aborted), NO_PRODUCERS))
    entry = RemoteSegment(
        base,
        base + len(running) - 1,
        timestamp,
        len(log),
        len(index),
        True,
        attempt,
        ((LEADER_EPOCH, base),),
        read_header(markers[-1]).crc,
    )
    await target.put(folder + entry.log_name, log)
    await target.put(folder + entry.index_name, index)
    return entry, len(running)


async def check_partition(
    store: ObjectStore, partition: StoredPartition, say: Callable[[str], None]
) -> list[str]:
    """Read all objects that the partition's manifest names; return what is wrong. Raises ObjectStoreError.

    What brokers have given up meanwhile may be missing.
    """
    problems, missing = list[str](), dict[str, str]()
    for segment in () if partition.manifest is None else partition.manifest.segments:
        say(partition.folder + segment.log_name)
        try:
            await checked_index(store, partition.folder, segment)
            async for _ in checked_pieces(store, partition.folder, segment):
                pass
        except ObjectNotFound as error:
            missing[segment.attempt] = f"{error.name} is missing"
        except DamagedObject as error:
            problems.append(str(error))
    if missing:
        again = await _read_again(store, partition)
        if again.problem:
            problems.append(f"{again.folder}: {again.problem}")
        named = set[str]() if again.manifest is None else {one.attempt for one in again.manifest.segments}
        problems += [text for attempt, text in missing.items() if attempt in named]
    return sorted(problems)


async def _read_again(store: ObjectStore, partition: StoredPartition) -> StoredPartition:
    """Raises ObjectStoreError."""
    place = partition.cluster_id or partition.topic  # that of an archive of format 1
    return await read_partition(store, place, partition.topic_id, partition.partition)


def _objects(partition: StoredPartition) -> set[str]:
    return {partition.folder + name for one in partition.segments for name in one.object_names}
