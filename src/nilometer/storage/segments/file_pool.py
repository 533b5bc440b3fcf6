"""A bounded pool of open files, shared by all logs of a process.

A broker may have ten thousand replicas and more segments than it may have file descriptors. Files are
opened on demand, and the least recently used one is closed when the pool is full.

Rules for users: use the pool on one thread only; use a :class:`File` from it at once and never keep it; work
on another thread opens (and closes) its own files.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict

from nilometer.runtime import Disk, File

OPEN_FILES_MAX = 1024


class FilePool:
    __slots__ = ("_files", "_of_folder", "_open_max", "disk")

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._of_folder: dict[str, dict[str, None]] = {}
        """The paths of the open files, by folder."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Return the file at ``path``, opened if necessary. Raises FileNotFoundError unless ``create``."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        while len(self._files) >= self._open_max:
            self.forget(next(iter(self._files)))
        file = self.disk.open(path, create=create)
        self._files[path] = file
        self._of_folder.setdefault(posixpath.dirname(path), {})[path] = None
        return file

    def forget(self, path: str) -> None:
        """Close the file at ``path`` if it is open, because it is idle or will be renamed or removed."""
        file = self._files.pop(path, None)
        if file is None:
            return
        folder = posixpath.dirname(path)
        of_folder = self._of_folder[folder]
        del of_folder[path]
        if not of_folder:
            del self._of_folder[folder]
        file.close()

    def forget_folder(self, folder: str) -> None:
        """Close every open file of ``folder``."""
        for path in list(self._of_folder.get(folder, ())):
            self.forget(path)

    def close(self) -> None:
        while self._files:
            self.forget(next(reversed(self._files)))

    def __len__(self) -> int:
        return len(self._files)
