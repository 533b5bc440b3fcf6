"""The sequence of entries as files: the first process that links a file with a number's name has the number.

The order of the steps of an append, and the reasons:

1. An entry is written to a *staged file* and synced, so a file in an entries folder always has its whole
   content.
2. Its predecessor is durable before it is linked, so a power failure leaves no gap.
3. ``link`` is the compare-and-set. A process that stops or dies just before or after it blocks no other.
4. The folder is synced by path before any process uses the new name, also the one that linked it. If the
   folder does not exist any more, it was retired together with the late name.

A snapshot starts a new folder: it is prepared in another place with the snapshot and links to the entries not
covered by it; then the old folder is *sealed*. The seal is a file like an entry, linked at the next free
number by the same compare-and-set; it has the name of the folder in which the sequence continues at that
number. :class:`Succession` makes that folder current.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable

import msgspec

from nilometer.coordination.local import layout
from nilometer.coordination.local.layout import StagedFiles, unavailable
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

# The current entries folder, and how the next one replaces it.
#
# The first process that finds the seal makes the new folder current (one rename); then the old one is
# renamed, so that no late writer can find a free number in it.

logger = logging.getLogger("nilometer.coordination.local.succession")


class EntriesFolder(msgspec.Struct):
    """An entries folder. Invariant: entries with the numbers ``[base, durable)`` survive a power failure."""

    base: int
    """The number of its first entry."""
    name: str
    path: str
    durable: int
    watched: int
    """The number of the next entry, whose file the store checks for."""

    def entry_path(self, number: int) -> str:
        return f"{self.path}/{layout.entry_name(number)}"


class Succession:
    def __init__(self, disk: Disk, root: str, token: str, on_changed: Callable[[], None]) -> None:
        """``on_changed`` is called when another folder is current."""
        self.path = posixpath.join(root, layout.ENTRIES)
        self.preparing = posixpath.join(root, layout.PREPARING)
        self.current: EntriesFolder | None = None
        self._retired = posixpath.join(root, layout.RETIRED)
        self._disk = disk
        self._token = token
        self._on_changed = on_changed

    async def open(self, first_folder: str) -> None:
        """Open the current folder of entries, in a new store ``first_folder``.

        Removes the files that dead processes have left.
        """
        names = await self._disk.offload(lambda: self._disk.list_directory(self.path))
        if layout.newest_folder(names) is None:
            await self.follow(first_folder)
        await self.resolve()
        await self._disk.offload(self.retire_old)

    @property
    def watched_path(self) -> str:
        return self.path if self.current is None else self.current.path

    async def in_force(self) -> EntriesFolder:
        """Return the current folder, as last seen by this process."""
        return self.current or await self.resolve()

    async def follow(self, seal: str) -> None:
        """Make the folder named in a seal current, unless another process did, and continue there.

        After a power failure the new folder's name decides, which is synced before any process continues
        there: if it exists, the seal is no longer needed; if not, no entry was appended there yet.
        """
        source = posixpath.join(self.preparing, seal)
        target = posixpath.join(self.path, seal)

        def in_force() -> None:
            try:
                self._disk.rename(source, target)
            except FileNotFoundError:
                pass  # another process did

        await self._disk.offload(in_force)
        await self.resolve()

    async def resolve(self) -> EntriesFolder:
        """List the entries folders; make the newest one current, and return it.

        If it was not current before, its parent folder is synced first, so that it survives a power failure.
        """

        def newest() -> layout.FolderName | None:
            found = layout.newest_folder(self._disk.list_directory(self.path))
            if found is not None and (self.current is None or self.current.name != found.text):
                self._disk.sync_directory(self.path)
            return found

        try:
            found = await self._disk.offload(newest)
        except OSError as error:
            raise unavailable(f"reading {self.path}", error) from error
        if found is None:
            raise StoreDamaged(
                f"{self.path} contains no entries folder; restore the store's folder from a copy"
            )
        if self.current is None or self.current.name != found.text:
            path = posixpath.join(self.path, found.text)
            self.current = EntriesFolder(found.base, found.text, path, found.base, found.base)
            self._on_changed()
        return self.current

    def retire_old(self) -> None:
        """Rename and remove the folders before the current one, and prepared ones that are outdated.

        May block.
        """
        newest = layout.newest_folder(self._disk.list_directory(self.path))
        if newest is None:
            return
        for name in self._disk.list_directory(self.path):
            folder = layout.parse_folder_name(name)
            if folder is not None and folder.base < newest.base:
                source = posixpath.join(self.path, name)
                try:
                    self._disk.rename(source, posixpath.join(self._retired, f"{name}.{self._token}"))
                except FileNotFoundError:
                    pass  # another process retires it
        for name in self._disk.list_directory(self._retired):
            self.discard_tree(posixpath.join(self._retired, name))
        for name in self._disk.list_directory(self.preparing):
            folder = layout.parse_folder_name(name)
            if folder is not None and folder.base <= newest.base:  # can never be sealed any more
                self.discard_tree(posixpath.join(self.preparing, name))

    def discard_tree(self, path: str) -> None:
        """Remove a folder; an error is only logged. May block."""
        try:
            self._disk.remove_tree(path)
        except FileNotFoundError:
            pass  # another process removes it too
        except OSError as error:
            logger.warning("Could not remove %s: %s. The next start of a broker removes it", path, error)


READ_BYTES_MAX = 8_000_000
"""One read returns at most about this many bytes, whatever the requested number of entries is."""


class EntryFolders:
    def __init__(
        self, disk: Disk, root: str, staged: StagedFiles, token: str, on_folder_changed: Callable[[], None]
    ) -> None:
        """``on_folder_changed`` is called when :attr:`watched_folder` is another one."""
        self._disk = disk
        self._root = root
        self._staged = staged
        self._token = token
        self._succession = Succession(disk, root, token, on_folder_changed)
        self._snapshots = 0

    async def open(self, first_folder: str) -> None:
        """Open the current folder of entries, in a new store ``first_folder``.

        Removes the files that dead processes have left.
        """
        await self._succession.open(first_folder)

    # ---- the signal

    @property
    def watched_folder(self) -> str:
        return self._succession.watched_path

    async def look(self) -> bool:
        """Return whether there is a new entry since the last check, or another folder is current. Cheap."""
        folder = await self._succession.in_force()
        number = folder.watched
        while self._disk.exists(folder.entry_path(number)):
            number += 1
        if number > folder.watched:
            folder.watched = number
            return True
        if self._disk.exists(folder.path):
            return False
        await self._succession.resolve()
        return True

    # ---- reading

    async def read(self, first: int, limit: int) -> list[Entry]:
        while True:
            folder = await self._succession.in_force()
            if first < folder.base:
                folder = await self._succession.resolve()
            if first < folder.base:
                raise EntriesRetired(first, folder.base)
            if not self._disk.exists(folder.entry_path(first)):
                if self._disk.exists(folder.path):
                    return []
                await self._succession.resolve()
                continue
            try:
                entries, seal = await self._disk.offload(
                    lambda f=folder, d=folder.durable: self._collect(f, d, first, limit)
                )
            except FileNotFoundError:
                await self._succession.resolve()
                continue
            self._note_durable(folder, entries)
            if entries or seal is None:
                return entries
            await self._succession.follow(seal)

    async def read_snapshot(self) -> Snapshot | None:
        while True:
            folder = await self._succession.resolve()
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

    def _collect(
        self, folder: EntriesFolder, durable: int, first: int, limit: int
    ) -> tuple[list[Entry], str | None]:
        """Read entries from ``first`` on; return them, and the next folder's name if the seal was reached.

        May block. ``durable``: that of the folder when this was begun: it changes while this runs on its
        thread, and what is done must not depend on which of the two is faster.
        """
        names_end = first
        while names_end < first + limit and self._disk.exists(folder.entry_path(names_end)):
            names_end += 1
        if names_end > durable:
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
    def _note_durable(folder: EntriesFolder, entries: list[Entry]) -> None:
        if entries and entries[0].number <= folder.durable:
            folder.durable = max(folder.durable, entries[-1].number + 1)

    # ---- appending

    async def append(self, number: int, data: bytes) -> bool:
        if len(data) > ENTRY_SIZE_MAX:
            raise EntryTooLarge(f"entry {number}", len(data))
        staged_path = self._staged.new_path()
        content = layout.wrap(layout.KIND_ENTRY, data)
        try:
            await self._disk.offload(lambda: self._staged.write(staged_path, content))
        except OSError as error:
            raise unavailable(f"writing entry {number} of the coordination store", error) from error
        try:
            return await self._put(number, staged_path)
        finally:
            self._staged.discard(staged_path)

    async def _put(self, number: int, staged_path: str) -> bool:
        while True:
            folder = await self._succession.in_force()
            if number < folder.base:
                return False
            if not await self._predecessor_stands(folder, number):
                if self._succession.current is folder and self._disk.exists(folder.path):
                    return False  # beyond the next number
                continue  # another folder is current now
            path = folder.entry_path(number)
            try:
                self._disk.link(staged_path, path)
            except FileExistsError:
                if not await self._followed_seal(folder, path):
                    return False
                continue
            except FileNotFoundError:
                await self._folder_or_staged_file_gone(folder, staged_path, number)
                continue
            except OSError as error:
                raise unavailable(f"linking entry {number} of the coordination store", error) from error
            await self._settle(folder, number)
            return True

    async def _settle(self, folder: EntriesFolder, number: int) -> None:
        """Sync the entries folder, so that the entry's file survives a power failure.

        Raises OutcomeUnknown if that fails.
        """
        try:
            await self._disk.offload(lambda: self._disk.sync_directory(folder.path))
        except FileNotFoundError:
            raise OutcomeUnknown(f"entry {number} was linked while its folder was being replaced") from None
        except OSError as error:
            raise OutcomeUnknown(
                f"entry {number} was linked, but its folder could not be synced: {error}"
            ) from error
        if folder.durable == number:
            folder.durable = number + 1

    async def _predecessor_stands(self, folder: EntriesFolder, number: int) -> bool:
        """Return whether ``number - 1`` is a durable entry of this folder, or below its base.

        If the folder is sealed below ``number``, the next folder becomes current, and the result is False.
        """
        if number <= folder.durable:
            return True
        try:
            while number > folder.durable:
                first = folder.durable
                entries, seal = await self._disk.offload(lambda f=first: self._collect(folder, f, f, 1000))
                self._note_durable(folder, entries)
                if not entries:
                    if seal is not None:
                        await self._succession.follow(seal)
                    elif not self._disk.exists(folder.path):
                        await self._succession.resolve()
                    return False
        except FileNotFoundError:
            await self._succession.resolve()
            return False
        except OSError as error:
            raise unavailable(f"reading the entry before entry {number}", error) from error
        return True

    async def _followed_seal(self, folder: EntriesFolder, path: str) -> bool:
        """Return whether the file at ``path`` is the seal or was removed: then the number may be free in the
        folder that is now current."""
        try:
            kind, data = layout.unwrap(path, await self._disk.offload(lambda: self._disk.read_file(path)))
        except FileNotFoundError:
            await self._succession.resolve()
            return True
        if kind != layout.KIND_SEAL:
            return False
        await self._succession.follow(data.decode())
        return True

    async def _folder_or_staged_file_gone(self, folder: EntriesFolder, staged_path: str, number: int) -> None:
        if not self._disk.exists(staged_path):
            raise StoreUnavailable(
                f"entry {number} was removed from the store's folder of staged files before it was linked"
            )
        if self._disk.exists(folder.path):
            raise StoreDamaged(f"cannot create a link in {folder.path}, although it exists")
        await self._succession.resolve()

    # ---- snapshots

    async def write_snapshot(self, number: int, data: bytes) -> bool:
        folder = await self._succession.resolve()
        while not await self._predecessor_stands(folder, number):
            if self._succession.current is folder:
                raise ValueError(f"a snapshot of {number} covers entries that do not exist")
            folder = await self._succession.in_force()
        if number <= folder.base:
            return False
        self._snapshots += 1
        name = layout.folder_name(number, f"{self._token}-{self._snapshots}")
        prepared = EntriesFolder(
            number, name, posixpath.join(self._succession.preparing, name), number, number
        )
        seal = self._staged.new_path()
        try:
            await self._disk.offload(lambda: self._prepare(prepared, data, seal))
            sealed = await self._disk.offload(lambda: self._seal(folder, prepared, seal))
        except OSError as error:
            self._succession.discard_tree(prepared.path)
            raise unavailable(f"writing the snapshot of {number}", error) from error
        finally:
            self._staged.discard(seal)
        if not sealed:
            self._succession.discard_tree(prepared.path)
            return False
        await self._succession.follow(name)
        await self._disk.offload(self._succession.retire_old)
        return True

    def _prepare(self, prepared: EntriesFolder, data: bytes, seal: str) -> None:
        self._disk.make_directories(prepared.path)
        snapshot = posixpath.join(prepared.path, layout.SNAPSHOT)
        self._staged.write(snapshot, layout.wrap(layout.KIND_SNAPSHOT, data))
        self._staged.write(seal, layout.wrap(layout.KIND_SEAL, prepared.name.encode()))
        self._disk.sync_directory(self._succession.preparing)

    def _seal(self, folder: EntriesFolder, prepared: EntriesFolder, seal: str) -> bool:
        """Link the entries above the snapshot into the new folder, then link the seal after the last one.

        Returns False if another snapshot was faster. May block.
        """
        number = prepared.base
        while True:
            path = folder.entry_path(number)
            try:
                if self._disk.exists(path):
                    kind, _ = layout.unwrap(path, self._disk.read_file(path))
                    if kind == layout.KIND_SEAL:
                        return False  # another snapshot was faster
                    self._disk.link(path, prepared.entry_path(number))
                    number += 1
                    continue
                self._disk.sync_directory(prepared.path)
                self._disk.link(seal, path)
            except FileExistsError:
                continue  # an entry was appended meanwhile: link it, too
            except FileNotFoundError:
                if self._disk.exists(folder.path) and self._disk.exists(prepared.path):
                    raise
                return False  # another snapshot was faster
            return True
