"""A local store as the source or the target of a copy (:mod:`nilometer.coordination.copying`).

The target is written beside its folder, and renamed when it is complete.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from nilometer.coordination.copying import Contents, Incarnations, not_begun, read_all, to_end
from nilometer.coordination.local import layout
from nilometer.coordination.local.layout import StagedFiles, StoreDescription
from nilometer.coordination.local.store import LocalReader, SecretFolder
from nilometer.coordination.store import SessionName, StoreRefused, StoreUnavailable, new_id
from nilometer.runtime import Disk, DiskLock, LockHeld, Runtime
from nilometer.runtime.disk import sync_ancestors

PART_SUFFIX: Final = ".copying"
"""Of the folder beside the target's, in which the copy is made."""

T = TypeVar("T")


async def _offloaded(disk: Disk, doing: str, work: Callable[[], T]) -> T:
    """Raises StoreUnavailable if the disk fails."""
    try:
        return await to_end(disk.offload(work))
    except OSError as error:
        raise StoreUnavailable(f"{doing} failed: {error}") from error


async def _contents(disk: Disk, root: str, cluster_id: str) -> Contents:
    secrets = SecretFolder(disk, root, StagedFiles(disk, posixpath.join(root, layout.STAGED), ""))
    has_secrets = disk.is_directory(posixpath.join(root, layout.MEMBERS))
    secret = await disk.offload(secrets.read) if has_secrets else None
    return await read_all(LocalReader(disk, root), cluster_id, secret)


class _Folder:
    """A folder that is locked against other copies while it is open. Brokers do not look at this lock."""

    def __init__(self, runtime: Runtime, folder: str) -> None:
        self._disk = runtime.disk
        self._root = folder
        self._lock: DiskLock | None = None

    def _take_lock(self, folder: str) -> None:
        """Raises StoreRefused, OSError."""
        try:
            self._lock = self._disk.lock(posixpath.join(folder, layout.COPY_LOCK))
        except LockHeld as held:
            raise StoreRefused(f"{folder} is being copied by another command: {held}") from held

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class LocalSource(_Folder):
    def __init__(self, runtime: Runtime, folder: str) -> None:
        super().__init__(runtime, folder)
        self._description: StoreDescription | None = None

    @property
    def name(self) -> str:
        return f"local:{self._root}"

    @property
    def cluster_id(self) -> str:
        return self._opened.cluster_id

    @property
    def moved_to(self) -> str:
        return self._opened.moved_to

    @property
    def _opened(self) -> StoreDescription:
        assert self._description is not None, "it is open"
        return self._description

    async def open(self) -> None:
        self._description = await self._offload("opening", self._open)

    def _open(self) -> StoreDescription:
        if layout.describe(self._disk, self._root) is not None:
            self._take_lock(self._root)
        found = layout.describe(self._disk, self._root)
        if found is None:
            raise StoreRefused(f"{self._root} contains no coordination store")
        return found

    async def users(self) -> list[str]:
        return await self._offload("reading", self._users)

    def _users(self) -> list[str]:
        folder = posixpath.join(self._root, layout.SESSIONS)
        locks = [name for name in self._disk.list_directory(folder) if name.endswith(layout.LOCK_SUFFIX)]
        return [
            f"broker {name.removesuffix(layout.LOCK_SUFFIX)}"
            for name in locks
            if self._disk.is_locked(posixpath.join(folder, name))
        ]

    async def note_moved(self, target: str) -> None:
        found = msgspec.structs.replace(self._opened, moved_to=target)
        await self._offload("closing", lambda: layout.write_description(self._disk, self._root, found))
        self._description = found

    async def contents(self) -> Contents:
        try:
            return await _contents(self._disk, self._root, self.cluster_id)
        except OSError as error:
            raise StoreUnavailable(
                f"reading the coordination store in {self._root} failed: {error}"
            ) from error

    async def _offload(self, doing: str, work: Callable[[], T]) -> T:
        return await _offloaded(self._disk, f"{doing} the coordination store in {self._root}", work)


class LocalTarget(_Folder):
    def __init__(self, runtime: Runtime, folder: str) -> None:
        super().__init__(runtime, folder)
        self._part = folder.rstrip("/") + PART_SUFFIX
        self._token = new_id(runtime.entropy)

    @property
    def name(self) -> str:
        return f"local:{self._root}"

    async def open(self, source: str, cluster_id: str, *, is_repeated: bool = False) -> None:
        await self._offload(lambda: self._open(source, is_repeated))

    def _open(self, source: str, is_repeated: bool) -> None:
        self._check()
        if is_repeated and not self._disk.exists(self._part):
            raise not_begun(source, self.name)
        self._disk.make_directories(self._part, private=True)
        sync_ancestors(self._disk, self._part)
        self._take_lock(self._part)
        self._check()  # another copy may have ended in between

    def _check(self) -> None:
        disk, root = self._disk, self._root
        layout.refuse_network_mount(disk, root)
        if not disk.exists(root):
            return
        if not disk.is_directory(root):
            raise StoreRefused(f"{root} is a file: name a folder that does not exist yet")
        if disk.list_directory(root):
            described = layout.describe(disk, root)
            what = "is not empty" if described is None else f"has the metadata of {described.cluster_id}"
            raise StoreRefused(
                f"{root} {what}, and nothing was changed: name a folder that does not exist yet"
            )

    async def write(self, contents: Contents, incarnations: Incarnations) -> None:
        await self._offload(lambda: self._write(contents, incarnations))

    def _write(self, contents: Contents, incarnations: Incarnations) -> None:
        disk, part = self._disk, self._part
        self._empty()  # of a copy that was interrupted
        base = 0 if contents.snapshot is None else contents.snapshot.number
        first = layout.folder_name(base, self._token)
        for name in (layout.STAGED, layout.SESSIONS, layout.PREPARING, layout.RETIRED):
            disk.make_directories(posixpath.join(part, name))
        entries = posixpath.join(part, layout.ENTRIES, first)
        disk.make_directories(entries)
        members = posixpath.join(part, layout.MEMBERS)
        disk.make_directories(members, private=True)
        staged = StagedFiles(disk, posixpath.join(part, layout.STAGED), self._token)
        if contents.snapshot is not None:
            content = layout.wrap(layout.KIND_SNAPSHOT, contents.snapshot.data)
            staged.write(posixpath.join(entries, layout.SNAPSHOT), content)
        for entry in contents.entries:
            content = layout.wrap(layout.KIND_ENTRY, entry.data)
            staged.write(posixpath.join(entries, layout.entry_name(entry.number)), content)
        if contents.secret is not None:
            path = posixpath.join(members, layout.secret_name(contents.secret.number))
            staged.write(path, layout.wrap(layout.KIND_SECRET, contents.secret.data), private=True)
        for broker_id, incarnation in sorted(incarnations.items()):
            name = layout.expired_name(SessionName(broker_id, incarnation))
            staged.write(posixpath.join(part, layout.SESSIONS, name), b"")
        description = StoreDescription(
            format=layout.FORMAT, cluster_id=contents.cluster_id, first_folder=first
        )
        layout.write_description(disk, part, description)
        for name in (layout.SESSIONS, layout.MEMBERS, layout.ENTRIES):
            disk.sync_directory(posixpath.join(part, name))
        disk.sync_directory(entries)

    def _empty(self) -> None:
        disk, part = self._disk, self._part
        for name in disk.list_directory(part):
            path = posixpath.join(part, name)
            if disk.is_directory(path):
                disk.remove_tree(path)
            elif name != layout.COPY_LOCK:
                disk.remove(path)

    async def written(self) -> Contents:
        try:
            description = layout.describe(self._disk, self._part)
            assert description is not None, "it was written"
            return await _contents(self._disk, self._part, description.cluster_id)
        except OSError as error:
            raise StoreUnavailable(f"reading {self._part} failed: {error}") from error

    async def publish(self) -> None:
        await self._offload(self._publish)

    def _publish(self) -> None:
        self._disk.rename(self._part, self._root)
        sync_ancestors(self._disk, self._root)

    async def is_published(self) -> bool:
        return await self._offload(lambda: layout.describe(self._disk, self._root) is not None)

    async def discard(self) -> None:
        await self._offload(lambda: self._disk.remove_tree(self._part))

    async def _offload(self, work: Callable[[], T]) -> T:
        return await _offloaded(self._disk, f"writing the coordination store {self._root}", work)
