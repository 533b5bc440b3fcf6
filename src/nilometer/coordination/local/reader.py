"""Reading a local store without a session: takes no lock, creates and syncs nothing.

For tools that read while brokers run. An entry that was read may be lost in a crash of the machine: use it
for display, not for decisions.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import TypeVar

from nilometer.coordination.local import layout
from nilometer.coordination.store import EntriesRetired, Entry, Snapshot, StoreAbsent, StoreUnavailable
from nilometer.runtime import Disk

T = TypeVar("T")

RESOLVE_ATTEMPTS_MAX = 50
"""How often a read is repeated because the folder was retired meanwhile."""


class LocalReader:
    """The read operations of a local store (``StoreReader``)."""

    def __init__(self, disk: Disk, folder: str) -> None:
        """Raises StoreAbsent if ``folder`` is not a store."""
        self._disk = disk
        self._root = folder
        self._entries = posixpath.join(folder, layout.ENTRIES)
        if not disk.exists(posixpath.join(folder, layout.STORE)):
            raise StoreAbsent(f"{folder} contains no coordination store")

    async def close(self) -> None:
        """Do nothing: there are no resources to release."""

    async def read(self, from_number: int, limit: int) -> list[Entry]:
        return await self._disk.offload(lambda: self._retried(lambda: self._read(from_number, limit)))

    async def read_snapshot(self) -> Snapshot | None:
        return await self._disk.offload(lambda: self._retried(self._read_snapshot))

    def _retried(self, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until no file was missing: a snapshot may have retired the folder meanwhile."""
        for _ in range(RESOLVE_ATTEMPTS_MAX):
            try:
                return attempt()
            except FileNotFoundError:
                continue
        raise StoreUnavailable(
            f"the entries in {self._entries} were replaced during every attempt to read them; try again"
        )

    def _read(self, first: int, limit: int) -> list[Entry]:
        folder = self._newest_folder()
        if folder is None:
            return []
        if first < folder.base:
            raise EntriesRetired(first, folder.base)
        path, number = posixpath.join(self._entries, folder.text), first
        entries: list[Entry] = []
        while len(entries) < limit:
            file = posixpath.join(path, layout.entry_name(number))
            if not self._disk.exists(file):
                break
            kind, data = layout.unwrap(file, self._disk.read_file(file))
            if kind == layout.KIND_SEAL:
                path = self._folder_named(data.decode())
                continue
            entries.append(Entry(number, data))
            number += 1
        return entries

    def _read_snapshot(self) -> Snapshot | None:
        folder = self._newest_folder()
        if folder is None or folder.base == 0:
            return None
        path = posixpath.join(self._entries, folder.text, layout.SNAPSHOT)
        return Snapshot(folder.base, layout.unwrap(path, self._disk.read_file(path))[1])

    def _newest_folder(self) -> layout.FolderName | None:
        return layout.newest_folder(self._disk.list_directory(self._entries))

    def _folder_named(self, name: str) -> str:
        """Return the path of the folder ``name``, current or not yet renamed into place."""
        for parent in (self._entries, posixpath.join(self._root, layout.PREPARING)):
            path = posixpath.join(parent, name)
            if self._disk.exists(path):
                return path
        raise FileNotFoundError(name)
