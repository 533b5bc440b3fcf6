"""The metadata that a quorum's node has in its log directory, read while the node runs or not. Nothing is
changed.

What the node knew to be committed is read: of a node that was killed the last second may be missing, and what
other nodes have committed since is not here.
"""

from __future__ import annotations

import posixpath

import msgspec

from nilometer.coordination.quorum.commands import AppliedState, decode
from nilometer.coordination.quorum.store import READ_BYTES_MAX
from nilometer.coordination.store import (
    EntriesRetired,
    Entry,
    Snapshot,
    StoreAbsent,
    StoreDamaged,
    StoreUnavailable,
)
from nilometer.identifiers import Offset
from nilometer.raft.control_records import KRaftVoters, VoterEntry, read_control_batch
from nilometer.raft.exchange import Election
from nilometer.raft.quorum_state import FOLDER, read_election
from nilometer.raft.recovery import read_committed
from nilometer.raft.snapshot_files import BOOTSTRAP, find_snapshots, read_snapshot, snapshot_values
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterSet
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.directories.log_directory import MetaProperties, read_meta_properties
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import CorruptBatch, UnsupportedMagic
from nilometer.wire.record_batch import check_batch
from nilometer.wire.records import decode_records

ATTEMPTS_MAX = 5
"""A node that runs may remove files between two looks at them."""


class FolderReader:
    """The read operations of a store (``StoreReader``)."""

    def __init__(self, disk: Disk, directory: str, *, committed: Offset | None = None) -> None:
        """``directory``: ``metadata.log.dir``, or the first one of ``log.dirs``. ``committed``: up to where
        to read, if that is known better than what the node has written down. Raises StoreAbsent."""
        self._disk = disk
        self._committed = committed
        self._folder = posixpath.join(directory, FOLDER)
        self._state = AppliedState()
        self._next = Offset(0)
        """The offset after the last record that was applied."""
        self._reached = ("", 0)
        """The log file of that record, and the position behind it."""
        if not disk.is_directory(self._folder):
            raise StoreAbsent(f"{directory} has no metadata log of a quorum")

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        state = await self._disk.offload(self.newest_state)
        if from_number < state.first_number:
            raise EntriesRetired(from_number, state.first_number)
        return state.entries(from_number, limit, READ_BYTES_MAX)

    async def read_snapshot(self) -> Snapshot | None:
        return (await self._disk.offload(self.newest_state)).snapshot

    def newest_state(self) -> AppliedState:
        """Blocks. Raises StoreDamaged, StoreUnavailable, OSError."""
        try:
            for _ in range(ATTEMPTS_MAX):
                try:
                    self._advance()
                except FileNotFoundError:
                    continue
                return self._state
        except (CorruptBatch, CorruptCheckpoint, msgspec.DecodeError) as error:
            raise StoreDamaged(f"{self._folder}: {error}") from error
        raise StoreUnavailable(f"the files in {self._folder} were replaced at each attempt to read them")

    def _advance(self) -> None:
        """Apply what has been committed since the last call."""
        disk, folder = self._disk, self._folder
        snapshots = [one for one in find_snapshots(disk, folder) if one != BOOTSTRAP]
        committed = read_committed(disk, folder) if self._committed is None else self._committed
        if snapshots and snapshots[-1].end_offset > self._next:
            state = AppliedState.from_bytes(b"".join(snapshot_values(disk, folder, snapshots[-1])))
            self._state, self._next, self._reached = state, snapshots[-1].end_offset, ("", 0)
        for name in sorted(disk.list_directory(folder)):
            if name.endswith(names.LOG_SUFFIX) and name >= self._reached[0]:
                self._apply_file(name, committed)

    def _apply_file(self, name: str, committed: Offset) -> None:
        start = self._reached[1] if name == self._reached[0] else 0
        file = self._disk.open(posixpath.join(self._folder, name), writable=False)
        try:
            for batch in scan(file, start, file.size()):
                header = batch.header
                if header.next_offset > committed:
                    return
                if header.base_offset >= self._next and not header.is_control:
                    check_batch(batch.buffer, batch.at, header)
                    for record in decode_records(batch.buffer, batch.at, header):
                        self._state.apply(Offset(record.offset), decode(record.value or b""))
                self._next = max(self._next, Offset(header.next_offset))
                self._reached = (name, batch.position + header.size)
        finally:
            file.close()


# What it says of the node itself.


class NodeFolder(msgspec.Struct, frozen=True, kw_only=True):
    properties: MetaProperties
    """Of ``meta.properties``."""
    election: Election | None
    """None: it has not taken part in an election."""
    snapshot: SnapshotId | None
    log_end_offset: Offset
    committed: Offset
    """What is below was committed when this was written down last."""
    voters: tuple[VoterEntry, ...]
    """The last ones that the snapshot and the log name, committed or not."""
    damage: str | None
    """Why the end of the log cannot be read: it is being written, or damaged."""


def inspect(disk: Disk, directory: str) -> NodeFolder | None:
    """Return what a log directory has of a quorum's node; None if it has nothing. Blocks.

    Raises CorruptCheckpoint, OSError.
    """
    properties = read_meta_properties(disk, posixpath.join(directory, names.META_PROPERTIES))
    folder = posixpath.join(directory, FOLDER)
    if properties is None or not disk.is_directory(folder):
        return None
    snapshots = find_snapshots(disk, folder)
    entries = (
        {} if not snapshots else {one.key: one for one in read_snapshot(disk, folder, snapshots[-1]).entries}
    )
    voters = VoterSet.of(*entries) if entries else VoterSet(())
    end = snapshots[-1].end_offset if snapshots else Offset(0)
    damage: str | None = None
    for name in sorted(disk.list_directory(folder)):
        expected, suffix = names.parse_offset_name(name) or (0, "")
        if suffix != names.LOG_SUFFIX:
            continue
        file = disk.open(posixpath.join(folder, name), writable=False)
        try:
            if expected > end:
                raise CorruptBatch(f"the offsets {end} to {expected - 1} are missing before it")
            size, read = file.size(), 0
            for batch in scan(file, 0, size):
                check_batch(batch.buffer, batch.at, batch.header)
                if batch.header.base_offset != expected:
                    raise CorruptBatch(
                        f"a batch begins at offset {batch.header.base_offset}, but {expected} must follow"
                    )
                expected = batch.header.next_offset
                end = max(end, Offset(batch.header.next_offset))
                read = batch.position + batch.header.size
                if not batch.header.is_control:
                    continue
                for _, record in read_control_batch(batch.buffer, batch.at, batch.header):
                    if isinstance(record, KRaftVoters):
                        voters = record.voters
                        entries.update((one.key, one) for one in record.entries)
            if read < size:
                damage = f"{name}: it ends with a part of a batch, {size - read} bytes"
        except (CorruptBatch, UnsupportedMagic) as error:
            damage = f"{name}: {error}"
        finally:
            file.close()
        if damage is not None:
            break  # what is behind it does not continue the log
    return NodeFolder(
        properties=properties,
        election=read_election(disk, folder),
        snapshot=snapshots[-1] if snapshots else None,
        log_end_offset=end,
        committed=read_committed(disk, folder),
        voters=tuple(entries[key] for key in voters.voters),
        damage=damage,
    )
