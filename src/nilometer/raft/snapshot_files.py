"""Snapshots as files beside the log, in Kafka's format: ``<end offset>-<epoch>.checkpoint``.

A file has record batches, with offsets from 0: a control batch with SnapshotHeader, KRaftVersion and
KRaftVoters, the records of the state machine, and a control batch with SnapshotFooter. It is written, or
fetched, under another name (``.checkpoint.part``), and gets its own when it is complete and durable; a
restart removes what is not. A cluster begins with ``00000000000000000000-0000000000.checkpoint``, which has
its first voters and no records.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from nilometer.identifiers import LeaderEpoch, Offset
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
from nilometer.raft.snapshots import Snapshot, SnapshotId
from nilometer.raft.voters import NO_VOTERS, VoterSet
from nilometer.runtime import Disk
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import check_batch
from nilometer.wire.records import BatchBuilder, decode_records

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
