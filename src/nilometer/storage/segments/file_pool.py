"""Open files, shared by all logs of a process and bounded in number.

A process may hold ten thousand replicas and more segments than it may have descriptors. Files are
opened on demand and the one longest unused is closed when the pool is full.

Rules for users: everything that touches the pool runs on one thread; a :class:`File` got from it is
used at once and never kept; work that is handed to another thread opens (and closes) its own.
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
        """The open file at ``path``. Raises FileNotFoundError unless ``create``."""
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
        """Close the file at ``path`` if it is open: it is idle, or about to be renamed or removed."""
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
        """Close every open file that lies in ``folder``."""
        for path in list(self._of_folder.get(folder, ())):
            self.forget(path)

    def close(self) -> None:
        while self._files:
            self.forget(next(reversed(self._files)))

    def __len__(self) -> int:
        return len(self._files)
