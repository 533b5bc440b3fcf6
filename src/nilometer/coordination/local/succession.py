"""The current entries folder, and how the next one replaces it.

A snapshot starts a new folder: it is prepared in another place with the snapshot and links to the entries not
covered by it; then the old folder is *sealed* (:mod:`~nilometer.coordination.local.entries`). The first
process that finds the seal makes the new folder current (one rename); then the old one is renamed, so that no
late writer can find a free number in it.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable

import msgspec

from nilometer.coordination.local import layout
from nilometer.coordination.local.staged_files import unavailable
from nilometer.coordination.store import StoreDamaged
from nilometer.runtime import Disk

logger = logging.getLogger(__name__)


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
        """Make the store's first folder current if it never was; remove files left by dead processes."""
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
