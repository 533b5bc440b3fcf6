"""Snapshots (KIP-630): the state after a prefix of the log takes the place of its records.

Each replica makes its own, of what is committed; its content is opaque here. The log then begins at its
*origin*, the end of a snapshot, or of an earlier one as long as the shell keeps the records in between. A
replica whose log ends below the leader's origin, or diverges there, gets the leader's snapshot instead of
records, in parts, and replaces its log by it.

Invariants:
- *a snapshot has only what is committed*, so it is never truncated and replaces nothing that is not in it;
- *the log begins at or below the end of the newest snapshot*: no record is missing between them;
- *the epoch of the last record that is gone is known*: it is the origin's. A log that is only a snapshot is
  as long, and as new, as the one that the snapshot was made from.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from nilometer.identifiers import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from nilometer.invariants import check
from nilometer.raft.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    VoterEntry,
    control_batch,
    read_control_batch,
)
from nilometer.raft.voters import NO_VOTERS, VoterSet
from nilometer.replication.epochs import ReplicaLog
from nilometer.runtime import Disk
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import check_batch
from nilometer.wire.records import BatchBuilder, decode_records


class SnapshotId(NamedTuple):
    end_offset: Offset
    """The snapshot has the state after all records below."""
    epoch: LeaderEpoch
    """The epoch of the last of these records."""


BEGINNING: Final = SnapshotId(0, NO_LEADER_EPOCH)
"""The origin of a log that has all its records."""


class Snapshot(msgspec.Struct, frozen=True):
    """A snapshot that is complete and durable."""

    id: SnapshotId
    voters: VoterSet
    """Those that the records below its end have named last."""
    size: int
    """In bytes."""


class SnapshotLog:
    """A log that begins where a snapshot ends: what the roles read of it. Its first epoch is the origin's,
    also if no record of that is left."""

    __slots__ = ("_log", "origin", "snapshot")

    def __init__(self, log: ReplicaLog, origin: SnapshotId, snapshot: Snapshot | None) -> None:
        self._log = log
        self.origin = origin
        self.snapshot = snapshot
        """The newest one."""
        check(
            origin.end_offset <= self.snapshot_end,
            "the log begins at or below its snapshot's end",
            origin,
            snapshot,
        )

    @property
    def snapshot_end(self) -> Offset:
        """What is below is in the newest snapshot; 0 without one."""
        return 0 if self.snapshot is None else self.snapshot.id.end_offset

    @property
    def log_start_offset(self) -> Offset:
        return self.origin.end_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.origin.epoch if self._is_empty else self._log.latest_epoch

    @property
    def _is_empty(self) -> bool:
        return self._log.log_end_offset <= self.origin.end_offset

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """As :meth:`ReplicaLog.end_offset_for_epoch`, with the origin's epoch in the chain."""
        end, known = self.origin
        if not self._is_empty:
            found = self._log.end_offset_for_epoch(epoch)
            if found[0] == NO_LEADER_EPOCH or found[1] > end:
                return found
        elif epoch > known:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        return (min(epoch, known) if end else epoch), end

    def has(self, end_offset: Offset, epoch: LeaderEpoch) -> bool:
        """Return whether the record before ``end_offset`` is of ``epoch``, and this log's own or the origin's
        last one."""
        if end_offset <= self.origin.end_offset:
            return (end_offset, epoch) == self.origin
        if end_offset > self.log_end_offset:
            return False
        found, end = self.end_offset_for_epoch(epoch)
        before = self.end_offset_for_epoch(LeaderEpoch(epoch - 1))[1] if epoch > self.origin.epoch else 0
        return found == epoch and max(before, 0) < end_offset <= end

    def needs_snapshot(self, end_offset: Offset, last_epoch: LeaderEpoch) -> bool:
        """Return whether a log that ends at ``end_offset``, with a record of ``last_epoch``, cannot be
        continued by records of this one: it ends below the origin, or differs from it there."""
        begin, epoch = self.origin
        if self.snapshot is None or not begin:
            return False
        return end_offset < begin or last_epoch < epoch or (end_offset == begin and last_epoch != epoch)


class Download:
    """A snapshot that a follower fetches from its leader, part after part."""

    __slots__ = ("id", "is_complete", "position")

    def __init__(self, snapshot: SnapshotId) -> None:
        self.id = snapshot
        self.position = 0
        """How many bytes have come."""
        self.is_complete = False
        """Whether all have come; the shell reads them then."""


# Snapshots as files beside the log, in Kafka's format: ``<end offset>-<epoch>.checkpoint``.
#
# A file has record batches, with offsets from 0: a control batch with SnapshotHeader, KRaftVersion and
# KRaftVoters, the records of the state machine, and a control batch with SnapshotFooter. It is written, or
# fetched, under another name (``.checkpoint.part``), and gets its own when it is complete and durable; a
# restart removes what is not. A cluster begins with ``00000000000000000000-0000000000.checkpoint``, which has
# its first voters and no records.

BOOTSTRAP: Final = SnapshotId(Offset(0), LeaderEpoch(0))
"""The file with the first voters."""
SUFFIX: Final = ".checkpoint"
PART_SUFFIX: Final = ".checkpoint.part"
BATCH_BYTES: Final = 1 << 20
"""Records of a snapshot are in batches of at most this size, or one record."""
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class SnapshotContent(msgspec.Struct, frozen=True):
    """A snapshot that was read and is in order."""

    snapshot: Snapshot
    entries: tuple[VoterEntry, ...]
    last_timestamp: int


def snapshot_path(folder: str, snapshot: SnapshotId) -> str:
    return posixpath.join(folder, _stem(snapshot) + SUFFIX)


def fetched_path(folder: str, snapshot: SnapshotId) -> str:
    """Return where a snapshot is while it is fetched."""
    return posixpath.join(folder, f"{_stem(snapshot)}-fetched{PART_SUFFIX}")


def _stem(snapshot: SnapshotId) -> str:
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}"


def find_snapshots(disk: Disk, folder: str) -> list[SnapshotId]:
    """Return the snapshots in a folder, the oldest first."""
    found = (_NAME.fullmatch(name) for name in disk.list_directory(folder))
    return sorted(SnapshotId(Offset(int(one[1])), LeaderEpoch(int(one[2]))) for one in found if one)


def write_snapshot(
    disk: Disk,
    folder: str,
    snapshot: SnapshotId,
    entries: Sequence[VoterEntry],
    values: Iterable[bytes],
    *,
    wall_ms: int,
    last_timestamp: int = 0,
) -> int:
    """Write a snapshot whose records have ``values``, make it durable, and return its size in bytes. Blocks.

    ``last_timestamp`` is that of the last record that it contains. Raises OSError.
    """
    path = posixpath.join(folder, f"{_stem(snapshot)}-made{PART_SUFFIX}")
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        for batch in _batches(snapshot, entries, values, wall_ms, last_timestamp):
            file.append([batch])
        file.sync()
        size = file.size()
    finally:
        file.close()
    _publish(disk, folder, path, snapshot)
    return size


def _batches(
    snapshot: SnapshotId,
    entries: Sequence[VoterEntry],
    values: Iterable[bytes],
    wall_ms: int,
    last_timestamp: int,
) -> Iterator[bytes]:
    epoch = snapshot.epoch
    first: list[ControlRecord] = [SnapshotHeader(last_timestamp), KRaftVersion()]
    if entries:
        first.append(KRaftVoters(tuple(entries)))
    yield control_batch(first, 0, epoch, wall_ms)
    offset = len(first)
    builder = BatchBuilder(size_max=BATCH_BYTES)
    for value in values:
        if not builder.append(wall_ms, None, value):
            yield builder.build(offset, partition_leader_epoch=epoch)
            offset += builder.records_count
            builder = BatchBuilder(size_max=BATCH_BYTES)
            builder.append(wall_ms, None, value)
    if builder.records_count:
        yield builder.build(offset, partition_leader_epoch=epoch)
        offset += builder.records_count
    yield control_batch([SnapshotFooter()], offset, epoch, wall_ms)


def accept_fetched(disk: Disk, folder: str, snapshot: SnapshotId) -> SnapshotContent:
    """Read a snapshot that was fetched; if it is in order, make it durable under its name. Blocks.

    Raises CorruptCheckpoint, OSError.
    """
    path = fetched_path(folder, snapshot)
    content = _read(disk, path, snapshot)
    file = disk.open(path)
    try:
        file.sync()
    finally:
        file.close()
    _publish(disk, folder, path, snapshot)
    return content


def _publish(disk: Disk, folder: str, path: str, snapshot: SnapshotId) -> None:
    disk.rename(path, snapshot_path(folder, snapshot))
    disk.sync_directory(folder)


def read_snapshot(disk: Disk, folder: str, snapshot: SnapshotId) -> SnapshotContent:
    """Read a whole snapshot, to know its voters and that it is in order. Blocks.

    Raises CorruptCheckpoint, OSError.
    """
    return _read(disk, snapshot_path(folder, snapshot), snapshot)


def snapshot_values(disk: Disk, folder: str, snapshot: SnapshotId) -> Iterator[bytes]:
    """Yield the values of its records, the state machine's. Blocks. Raises CorruptBatch, OSError."""
    path = snapshot_path(folder, snapshot)
    file = disk.open(path, writable=False)
    try:
        for batch in scan(file, 0, file.size()):
            if not batch.header.is_control:
                for record in decode_records(batch.buffer, batch.at, batch.header):
                    yield record.value or b""
    finally:
        file.close()


def _read(disk: Disk, path: str, snapshot: SnapshotId) -> SnapshotContent:
    controls: list[ControlRecord] = []
    end = offset = 0
    last_is_control = False
    file = disk.open(path, writable=False)
    try:
        size = file.size()
        for position, header, buffer, at in scan(file, 0, size):
            check_batch(buffer, at, header)
            if header.base_offset != offset or header.partition_leader_epoch != snapshot.epoch:
                raise CorruptCheckpoint(path, f"has a batch of another snapshot at byte {position}")
            last_is_control = header.is_control
            if last_is_control:
                controls += (record for _, record in read_control_batch(buffer, at, header))
            end, offset = position + header.size, header.next_offset
    except KafkaError as error:
        raise CorruptCheckpoint(path, f"is damaged after byte {end}: {error.message}") from error
    finally:
        file.close()
    if end != size or not controls or controls[-1] != SnapshotFooter() or not last_is_control:
        raise CorruptCheckpoint(path, f"ends after byte {end} of {size} without a footer")
    header_record = controls[0]
    if not isinstance(header_record, SnapshotHeader):
        raise CorruptCheckpoint(path, "does not begin with a header")
    entries = next((one.entries for one in controls if isinstance(one, KRaftVoters)), ())
    voters = VoterSet.of(*(entry.key for entry in entries)) if entries else NO_VOTERS
    return SnapshotContent(Snapshot(snapshot, voters, size), entries, header_record.last_timestamp)


class SnapshotReading:
    """A fetched snapshot to be read and made durable, on any thread."""

    def __init__(self, disk: Disk, folder: str, snapshot: SnapshotId) -> None:
        self._disk = disk
        self._folder = folder
        self.id = snapshot
        self.content: SnapshotContent | None = None
        """None if it is damaged: ``damage`` says how."""
        self.damage: CorruptCheckpoint | None = None

    def run(self) -> None:
        """Blocks. Raises OSError: then the replica has failed."""
        try:
            self.content = accept_fetched(self._disk, self._folder, self.id)
        except CorruptCheckpoint as error:
            self.damage = error


class SnapshotMaking:
    """A snapshot to be written, on any thread. ``values`` is read there, and must not change meanwhile."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        snapshot: SnapshotId,
        voters: VoterSet,
        entries: Sequence[VoterEntry],
        values: Iterable[bytes],
        *,
        wall_ms: int,
        last_timestamp: int,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._values = values
        self._wall_ms = wall_ms
        self._last_timestamp = last_timestamp
        self._entries = entries
        self._voters = voters
        self._size = 0
        self.id = snapshot

    def run(self) -> None:
        """Blocks. Raises OSError: then the replica has failed."""
        self._size = write_snapshot(
            self._disk,
            self._folder,
            self.id,
            self._entries,
            self._values,
            wall_ms=self._wall_ms,
            last_timestamp=self._last_timestamp,
        )

    @property
    def snapshot(self) -> Snapshot:
        check(self._size > 0, "a snapshot is written before it is used", self.id)
        return Snapshot(self.id, self._voters, self._size)
