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
from nilometer.raft.quorum_state import FOLDER
from nilometer.raft.recovery import read_committed
from nilometer.raft.snapshot_files import BOOTSTRAP, find_snapshots, snapshot_values
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.errors import CorruptCheckpoint
from nilometer.storage.segments.batch_scan import scan
from nilometer.wire.errors import CorruptBatch
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
