"""The log directory of a quorum's node as the source or the target of a copy
(:mod:`nilometer.coordination.copying`).

As a target it becomes that of the only voter of a new quorum: its metadata log begins with a snapshot of the
commands' state, above all incarnations that the metadata names, since incarnations are offsets here. As a
source it must be that of the only voter: only then it has all that is committed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from nilometer.coordination.copying import Contents, Incarnations, not_begun, read_all, to_end
from nilometer.coordination.quorum.commands import AppliedState
from nilometer.coordination.quorum.folder_reader import FolderReader, inspect
from nilometer.coordination.store import StoreDamaged, StoreRefused, StoreUnavailable
from nilometer.identifiers import BrokerId, LeaderEpoch, Offset
from nilometer.raft.control_records import VoterEntry
from nilometer.raft.quorum_state import (
    FOLDER,
    LOCK,
    Owner,
    check_is_ours,
    claim,
    has_metadata,
    read_owner,
    write_owner,
)
from nilometer.raft.recovery import LOG_CONFIG, QuorumDamaged, recover
from nilometer.raft.snapshot_files import PART_SUFFIX, SUFFIX, write_snapshot
from nilometer.raft.snapshots import SnapshotId
from nilometer.raft.voters import VoterKey
from nilometer.runtime import DiskLock, LockHeld, Runtime
from nilometer.storage import names
from nilometer.storage.directories.log_directory import (
    MetaProperties,
    new_directory_id,
    read_meta_properties,
)
from nilometer.storage.errors import CorruptCheckpoint, LogFenced

VALUE_BYTES: Final = 1 << 20
"""The state in the snapshot is divided into values of this size."""
FIRST_EPOCH: Final = LeaderEpoch(1)
ALL: Final = Offset((1 << 63) - 1)

T = TypeVar("T")


class _Directory:
    """A log directory, locked against its broker while it is open."""

    def __init__(self, runtime: Runtime, directory: str) -> None:
        self._runtime = runtime
        self._disk = runtime.disk
        self._directory = directory
        self._folder = posixpath.join(directory, FOLDER)
        self._lock: DiskLock | None = None

    @property
    def name(self) -> str:
        return f"quorum:{self._directory}"

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _take_lock(self) -> None:
        """Raises StoreRefused if a broker runs there."""
        broker_lock = posixpath.join(self._directory, names.LOCK)
        if self._disk.exists(broker_lock) and self._disk.is_locked(broker_lock):
            raise StoreRefused(f"a broker uses {self._directory}: stop it first")
        try:
            self._lock = self._disk.lock(posixpath.join(self._directory, LOCK))
        except LockHeld as held:
            raise StoreRefused(f"a broker uses {self._directory}: {held}. Stop it first") from held

    async def _contents(self, cluster_id: str, reader: FolderReader) -> Contents:
        state = await self._offload(reader.newest_state)
        return await read_all(reader, cluster_id, state.secret)

    async def _offload(self, work: Callable[[], T]) -> T:
        """Raises StoreUnavailable if the disk fails, StoreDamaged if what is there is not in order."""
        try:
            return await to_end(self._disk.offload(work))
        except (OSError, LogFenced) as error:
            raise StoreUnavailable(f"{self._directory}: {error}") from error
        except (CorruptCheckpoint, QuorumDamaged) as error:
            raise StoreDamaged(str(error)) from error


class QuorumSource(_Directory):
    def __init__(self, runtime: Runtime, directory: str) -> None:
        super().__init__(runtime, directory)
        self._owner: Owner | None = None
        self.cluster_id = ""

    @property
    def moved_to(self) -> str:
        return self._opened.moved_to

    @property
    def _opened(self) -> Owner:
        assert self._owner is not None, "it is open"
        return self._owner

    async def open(self) -> None:
        await self._offload(self._open)
        state = await self._offload(self._reader().newest_state)
        if state.cluster_id is None:
            raise StoreRefused(f"{self._folder} has no cluster yet")
        self.cluster_id = state.cluster_id

    def _open(self) -> None:
        owner = read_owner(self._disk, self._folder)
        check_is_ours(self._disk, self._directory)
        if owner is None or not has_metadata(self._disk, self._folder):
            raise StoreRefused(f"{self._directory} has no metadata log of a quorum")
        if owner.copied_from:
            raise StoreRefused(f"{self._folder} {owner.why_closed}")
        self._take_lock()
        owner = read_owner(self._disk, self._folder) or owner  # another copy may have ended in between
        self._check_is_whole(owner)
        recover(self._disk, self._folder, LOG_CONFIG, self._runtime.clock.wall_ms()).log.files.pool.close()
        self._owner = owner

    def _check_is_whole(self, owner: Owner) -> None:
        """Raises StoreRefused if the log may lack something that was committed, StoreDamaged."""
        found = inspect(self._disk, self._directory)
        if found is None:
            raise StoreDamaged(f"{self._directory} has no {names.META_PROPERTIES}: restore it from a copy")
        if found.damage is not None and not owner.moved_to:
            raise StoreDamaged(
                f"{self._folder}/{found.damage}. Restore the file from a copy; or start and stop the broker, "
                "which removes what comes after the damage"
            )
        voters = [entry.key for entry in found.voters]
        if [voter.directory_id for voter in voters] != [owner.directory_id]:
            others = ", ".join(str(one.node_id) for one in voters if one.directory_id != owner.directory_id)
            raise StoreRefused(
                f"{self._directory} is not that of the only voter of its quorum, so it may lack what the "
                f"others have: while the brokers run, remove the other voters ({others}) with "
                '"nilometer cluster quorum remove", stop all brokers, and copy from the last voter'
            )

    def _reader(self) -> FolderReader:
        return FolderReader(self._disk, self._directory, committed=ALL)

    async def users(self) -> list[str]:
        return []  # the lock keeps them away

    async def note_moved(self, target: str) -> None:
        owner = msgspec.structs.replace(self._opened, moved_to=target)
        await self._offload(lambda: write_owner(self._disk, self._folder, owner))
        self._owner = owner

    async def contents(self) -> Contents:
        return await self._contents(self.cluster_id, self._reader())


class QuorumTarget(_Directory):
    def __init__(self, runtime: Runtime, directory: str, node_id: int | None) -> None:
        """``node_id``: of a directory that has no ``meta.properties``."""
        super().__init__(runtime, directory)
        self._node_id = node_id
        self._properties = MetaProperties()
        self._cluster_id = ""

    async def open(self, source: str, cluster_id: str, *, is_repeated: bool = False) -> None:
        self._cluster_id = cluster_id
        await self._offload(lambda: self._open(source, is_repeated))

    def _open(self, source: str, is_repeated: bool) -> None:
        disk, directory, folder = self._disk, self._directory, self._folder
        if disk.exists(directory) and not disk.is_directory(directory):
            raise StoreRefused(f"{directory} is a file: name a log directory of a broker")
        owner = read_owner(disk, folder)
        check_is_ours(disk, directory)
        if owner is not None and owner.copied_from and owner.copied_from != source:
            raise StoreRefused(f"{folder} {owner.why_closed}")
        if owner is not None and not owner.copied_from and has_metadata(disk, folder):
            raise StoreRefused(
                f"{directory} has the metadata log of a quorum, and nothing was changed: name a log "
                "directory that has none"
            )
        if is_repeated and (owner is None or not owner.copied_from):
            raise not_begun(source, self.name)
        path = posixpath.join(directory, names.META_PROPERTIES)
        found = read_meta_properties(disk, path) or MetaProperties()
        node_id = found.node_id if self._node_id is None else self._node_id
        if node_id is None:
            raise StoreRefused(
                f"{directory} has no meta.properties: give the node.id of its broker with --node-id"
            )
        found.check(path, node_id, self._cluster_id)
        disk.make_directories(directory)
        self._take_lock()
        directory_id = None if owner is None and found.is_quorum_node else found.directory_id
        directory_id = directory_id or new_directory_id(self._runtime.entropy.uuid())
        self._properties = MetaProperties(node_id, self._cluster_id, directory_id, found.is_quorum_node)
        claim(disk, directory, self._properties, Owner(directory_id=directory_id, copied_from=source))

    async def write(self, contents: Contents, incarnations: Incarnations) -> None:
        await self._offload(lambda: self._write(contents, incarnations))

    def _write(self, contents: Contents, incarnations: Incarnations) -> None:
        disk, folder, properties = self._disk, self._folder, self._properties
        self._discard()  # of a copy that was interrupted
        data = AppliedState.of(
            contents.cluster_id, contents.snapshot, contents.entries, contents.secret
        ).to_bytes()
        assert properties.node_id is not None and properties.directory_id is not None, "it is open"
        voter = VoterEntry(VoterKey(BrokerId(properties.node_id), properties.directory_id))
        write_snapshot(
            disk,
            folder,
            SnapshotId(Offset(max(incarnations.values(), default=0) + 1), FIRST_EPOCH),
            [voter],
            (data[begin : begin + VALUE_BYTES] for begin in range(0, len(data), VALUE_BYTES)),
            wall_ms=self._runtime.clock.wall_ms(),
        )

    async def written(self) -> Contents:
        return await self._contents(self._cluster_id, FolderReader(self._disk, self._directory))

    async def publish(self) -> None:
        owner = Owner(directory_id=self._properties.directory_id or "")
        await self._offload(lambda: write_owner(self._disk, self._folder, owner))

    async def is_published(self) -> bool:
        owner = await self._offload(lambda: read_owner(self._disk, self._folder))
        return owner is not None and not owner.copied_from

    async def discard(self) -> None:
        await self._offload(self._discard)

    def _discard(self) -> None:
        for name in self._disk.list_directory(self._folder):
            if name.endswith((SUFFIX, PART_SUFFIX)):
                self._disk.remove(posixpath.join(self._folder, name))
