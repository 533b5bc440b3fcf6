"""The sequence of entries as files: a number is taken by whoever links a file to its name first.

Knows the entries folders and how one follows another. Never touches sessions.

Order of effects, and why:

1. An entry is written *aside* and synced, so a name in an entries folder always leads to whole content.
2. Its predecessor is durable before it is linked, so a power cut leaves no gap.
3. ``link`` is the compare-and-set. A process that stops or dies just before or after it holds up nobody.
4. The folder is synced by path before anybody acts on the name, its author included. A folder that is
   gone by then was retired, and the late name with it.

A snapshot begins a new folder: prepared elsewhere with the snapshot and links to the entries not covered
by it, then the old folder is *sealed*. The seal is an entry like any other, put at the next free number by
the same compare-and-set, and names the folder in which that number is really to be had. Whoever finds the
seal puts the new folder in force (one rename, done by the first to come); then the old one is renamed away
as a whole, so that no path leads to a free old number ever again.
"""

from __future__ import annotations

import errno
import logging
import posixpath
from dataclasses import dataclass

from nilometer.coordination.local import layout
from nilometer.coordination.store import (
    ENTRY_SIZE_MAX,
    EntriesRetired,
    Entry,
    EntryTooLarge,
    OutcomeUnknown,
    Snapshot,
    StoreDamaged,
    StoreUnavailable,
)
from nilometer.runtime import Disk

logger = logging.getLogger(__name__)

READ_BYTES_MAX = 8_000_000
"""One read returns no more than about this many bytes, however many entries it was asked for."""


@dataclass(slots=True)
class _Folder:
    """An entries folder in force. Invariant: all numbers in [base, durable) are entries, durably named."""

    base: int
    name: str
    path: str
    durable: int

    def entry_path(self, number: int) -> str:
        return f"{self.path}/{layout.entry_name(number)}"


class Aside:
    """Files being written, each under a name of its own, before they are linked into place."""

    def __init__(self, disk: Disk, folder: str, token: str) -> None:
        self._disk = disk
        self._prefix = posixpath.join(folder, token)
        self._count = 0

    def new_path(self) -> str:
        self._count += 1
        return f"{self._prefix}.{self._count}"

    def write(self, path: str, content: bytes, *, sync: bool = True) -> None:
        """May stall. On failure nothing is left behind."""
        file = self._disk.open(path, create=True)
        try:
            try:
                file.append([content])
                if sync:
                    file.sync()
            finally:
                file.close()
        except OSError:
            self.discard(path)
            raise

    def discard(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except FileNotFoundError:
            pass  # swept by another process; that is its right
        except OSError as error:
            logger.warning("Could not remove %s: %s. It is swept at a later start.", path, error)


def unavailable(doing: str, error: OSError) -> StoreUnavailable:
    """What an OSError means to the user, where nothing was changed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreUnavailable(
            f"the disk is full: {doing} failed ({error}); free some space, nothing was changed"
        )
    return StoreUnavailable(f"{doing} failed: {error}; nothing was changed")


class EntryFolders:
    def __init__(self, disk: Disk, root: str, aside: Aside, token: str) -> None:
        self._disk = disk
        self._root = root
        self._aside = aside
        self._token = token
        self._entries = posixpath.join(root, layout.ENTRIES)
        self._preparing = posixpath.join(root, layout.PREPARING)
        self._retired = posixpath.join(root, layout.RETIRED)
        self._snapshots = 0
        self._next_watched = 0
        self._current: _Folder | None = None

    async def open(self, first_folder: str) -> None:
        """Put the store's first folder in force, if it never was; then clean up after the dead."""
        names = await self._disk.offload(lambda: self._disk.list_directory(self._entries))
        if layout.newest_folder(names) is None:
            await self._follow(first_folder)
        await self._resolve()
        await self._disk.offload(self._retire_old)

    # ---- the signal

    @property
    def watched_folder(self) -> str:
        return self._current.path if self._current is not None else self._entries

    async def look(self) -> bool:
        """Whether the next number is taken since the last look, or another folder is in force. Cheap."""
        folder = self._current or await self._resolve()
        start = self._next_watched = max(self._next_watched, folder.base)
        while self._disk.exists(folder.entry_path(self._next_watched)):
            self._next_watched += 1
        if self._next_watched > start:
            return True
        if self._disk.exists(folder.path):
            return False
        await self._resolve()
        return True

    # ---- reading

    async def read(self, first: int, limit: int) -> list[Entry]:
        while True:
            folder = self._current or await self._resolve()
            if first < folder.base:
                folder = await self._resolve()
            if first < folder.base:
                raise EntriesRetired(first, folder.base)
            if not self._disk.exists(folder.entry_path(first)):
                if self._disk.exists(folder.path):
                    return []
                await self._resolve()
                continue
            try:
                entries, seal = await self._disk.offload(lambda f=folder: self._collect(f, first, limit))
            except FileNotFoundError:
                await self._resolve()
                continue
            self._note_durable(folder, entries)
            if entries or seal is None:
                return entries
            await self._follow(seal)

    async def read_snapshot(self) -> Snapshot | None:
        while True:
            folder = await self._resolve()
            if folder.base == 0:
                return None
            path = posixpath.join(folder.path, layout.SNAPSHOT)
            try:
                content = await self._disk.offload(lambda p=path: self._disk.read_file(p))
            except FileNotFoundError:
                if self._disk.exists(folder.path):
                    raise StoreDamaged(f"{path} is missing; restore the store's folder from a copy") from None
                continue  # retired meanwhile
            return Snapshot(folder.base, layout.unwrap(path, content)[1])

    def _collect(self, folder: _Folder, first: int, limit: int) -> tuple[list[Entry], str | None]:
        """Entries from ``first`` on, and the seal where one was met. May stall."""
        names_end = first
        while names_end < first + limit and self._disk.exists(folder.entry_path(names_end)):
            names_end += 1
        if names_end > folder.durable:
            self._disk.sync_directory(folder.path)
        entries: list[Entry] = []
        size = 0
        for number in range(first, names_end):
            path = folder.entry_path(number)
            kind, data = layout.unwrap(path, self._disk.read_file(path))
            if kind == layout.KIND_SEAL:
                return entries, data.decode()
            entries.append(Entry(number, data))
            size += len(data)
            if size >= READ_BYTES_MAX:
                break
        return entries, None

    @staticmethod
    def _note_durable(folder: _Folder, entries: list[Entry]) -> None:
        if entries and entries[0].number <= folder.durable:
            folder.durable = max(folder.durable, entries[-1].number + 1)

    # ---- appending

    async def append(self, number: int, data: bytes) -> bool:
        if len(data) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"entry {number}", len(data))
        aside = self._aside.new_path()
        content = layout.wrap(layout.KIND_ENTRY, data)
        try:
            await self._disk.offload(lambda: self._aside.write(aside, content))
        except OSError as error:
            raise unavailable(f"writing entry {number} of the coordination store", error) from error
        try:
            return await self._put(number, aside)
        finally:
            self._aside.discard(aside)

    async def _put(self, number: int, aside: str) -> bool:
        while True:
            folder = self._current or await self._resolve()
            if number < folder.base:
                return False
            if not await self._predecessor_stands(folder, number):
                if self._current is folder and self._disk.exists(folder.path):
                    return False  # beyond the next number
                continue  # another folder is in force by now
            path = folder.entry_path(number)
            try:
                self._disk.link(aside, path)
            except FileExistsError:
                if not await self._followed_seal(folder, path):
                    return False
                continue
            except FileNotFoundError:
                await self._folder_or_aside_gone(folder, aside, number)
                continue
            except OSError as error:
                raise unavailable(f"putting entry {number} in place", error) from error
            await self._settle(folder, number)
            return True

    async def _settle(self, folder: _Folder, number: int) -> None:
        """Make the name durable, or say that it is not known whether it stands."""
        try:
            await self._disk.offload(lambda: self._disk.sync_directory(folder.path))
        except FileNotFoundError:
            raise OutcomeUnknown(f"entry {number} was put in place just as its folder was retired") from None
        except OSError as error:
            raise OutcomeUnknown(
                f"entry {number} is in place, but not known to be durable: {error}"
            ) from error
        if folder.durable == number:
            folder.durable = number + 1

    async def _predecessor_stands(self, folder: _Folder, number: int) -> bool:
        """Whether ``number - 1`` is a durable entry of this folder (or below). Follows a seal there."""
        if number <= folder.durable:
            return True
        try:
            while number > folder.durable:
                first = folder.durable
                entries, seal = await self._disk.offload(lambda f=first: self._collect(folder, f, 1000))
                self._note_durable(folder, entries)
                if not entries:
                    if seal is not None:
                        await self._follow(seal)
                    elif not self._disk.exists(folder.path):
                        await self._resolve()
                    return False
        except FileNotFoundError:
            await self._resolve()
            return False
        except OSError as error:
            raise unavailable(f"reading what stands before entry {number}", error) from error
        return True

    async def _followed_seal(self, folder: _Folder, path: str) -> bool:
        """Whether what holds the name is the seal, or is gone: then the number may be free elsewhere."""
        try:
            kind, data = layout.unwrap(path, await self._disk.offload(lambda: self._disk.read_file(path)))
        except FileNotFoundError:
            await self._resolve()
            return True
        if kind != layout.KIND_SEAL:
            return False
        await self._follow(data.decode())
        return True

    async def _folder_or_aside_gone(self, folder: _Folder, aside: str, number: int) -> None:
        if not self._disk.exists(aside):
            raise StoreUnavailable(
                f"entry {number} was swept from the store's aside folder before it was in place"
            )
        if self._disk.exists(folder.path):
            raise StoreDamaged(f"cannot link into {folder.path}, though it is there")
        await self._resolve()

    # ---- snapshots

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        folder = await self._resolve()
        while not await self._predecessor_stands(folder, number):
            if self._current is folder:
                raise ValueError(f"a snapshot of {number} covers entries that do not exist")
            folder = self._current or await self._resolve()
        if number <= folder.base:
            return False
        self._snapshots += 1
        name = layout.folder_name(number, f"{self._token}-{self._snapshots}")
        prepared = _Folder(number, name, posixpath.join(self._preparing, name), number)
        seal = self._aside.new_path()
        try:
            await self._disk.offload(lambda: self._prepare(prepared, data, seal))
            sealed = await self._disk.offload(lambda: self._seal(folder, prepared, seal))
        except OSError as error:
            self._discard_tree(prepared.path)
            raise unavailable(f"writing the snapshot of {number}", error) from error
        finally:
            self._aside.discard(seal)
        if not sealed:
            self._discard_tree(prepared.path)
            return False
        await self._follow(name)
        await self._disk.offload(self._retire_old)
        return True

    def _prepare(self, prepared: _Folder, data: bytes, seal: str) -> None:
        self._disk.make_directories(prepared.path)
        snapshot = posixpath.join(prepared.path, layout.SNAPSHOT)
        self._aside.write(snapshot, layout.wrap(layout.KIND_SNAPSHOT, data))
        self._aside.write(seal, layout.wrap(layout.KIND_SEAL, prepared.name.encode()))
        self._disk.sync_directory(prepared.path)
        self._disk.sync_directory(self._preparing)

    def _seal(self, folder: _Folder, prepared: _Folder, seal: str) -> bool:
        """Carry over the entries above the snapshot, then put the seal behind the last. May stall."""
        number = prepared.base
        while True:
            path = folder.entry_path(number)
            try:
                if self._disk.exists(path):
                    kind, _ = layout.unwrap(path, self._disk.read_file(path))
                    if kind == layout.KIND_SEAL:
                        return False  # another snapshot came first
                    self._disk.link(path, prepared.entry_path(number))
                    number += 1
                    continue
                self._disk.sync_directory(prepared.path)
                self._disk.link(seal, path)
            except FileExistsError:
                continue  # an entry came first: carry it over too
            except FileNotFoundError:
                if self._disk.exists(folder.path) and self._disk.exists(prepared.path):
                    raise
                return False  # another snapshot came first
            return True

    async def _follow(self, seal: str) -> None:
        """Put the folder that a seal names in force, unless somebody did, and go on there.

        What counts after a power cut is the new folder's name, which is synced before anybody goes on there:
        with it, the seal is not needed any more; without it, nothing happened yet.
        """
        source = posixpath.join(self._preparing, seal)
        target = posixpath.join(self._entries, seal)

        def in_force() -> None:
            try:
                self._disk.rename(source, target)
            except FileNotFoundError:
                pass  # somebody did

        await self._disk.offload(in_force)
        await self._resolve()

    async def _resolve(self) -> _Folder:
        """The newest folder in force, durably so."""

        def newest() -> layout.FolderName | None:
            found = layout.newest_folder(self._disk.list_directory(self._entries))
            if found is not None and (self._current is None or self._current.name != found.text):
                self._disk.sync_directory(self._entries)
            return found

        try:
            found = await self._disk.offload(newest)
        except OSError as error:
            raise unavailable(f"reading {self._entries}", error) from error
        if found is None:
            raise StoreDamaged(
                f"{self._entries} holds no entries folder; restore the store's folder from a copy"
            )
        if self._current is None or self._current.name != found.text:
            path = posixpath.join(self._entries, found.text)
            self._current = _Folder(found.base, found.text, path, found.base)
            self._next_watched = found.base
        return self._current

    # ---- housekeeping

    def _retire_old(self) -> None:
        newest = layout.newest_folder(self._disk.list_directory(self._entries))
        if newest is None:
            return
        for name in self._disk.list_directory(self._entries):
            folder = layout.parse_folder_name(name)
            if folder is not None and folder.base < newest.base:
                source = posixpath.join(self._entries, name)
                try:
                    self._disk.rename(source, posixpath.join(self._retired, f"{name}.{self._token}"))
                except FileNotFoundError:
                    pass  # another process retires it
        for name in self._disk.list_directory(self._retired):
            self._discard_tree(posixpath.join(self._retired, name))
        for name in self._disk.list_directory(self._preparing):
            folder = layout.parse_folder_name(name)
            if folder is not None and folder.base <= newest.base:  # can never be sealed any more
                self._discard_tree(posixpath.join(self._preparing, name))

    def _discard_tree(self, path: str) -> None:
        try:
            self._disk.remove_tree(path)
        except FileNotFoundError:
            pass  # another process removes it too
        except OSError as error:
            logger.warning("Could not remove %s: %s. It is removed at a later start.", path, error)
