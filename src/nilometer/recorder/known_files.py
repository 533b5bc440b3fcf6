"""What a recording need not repeat of the files in the log directories: what the broker itself wrote there.

Of each file the bytes from some position on are *known*: they were written after the recording began, and
replay has them, too. What is read below that position is in the recording.

Both sides apply the same rules to the same calls. While recording, content is not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from typing_extensions import Buffer

NOTHING_KNOWN = 2**63
SHARED_FOLDER = ".coordination"
"""The coordination store, if it is in a log directory: other brokers and commands write there, too."""


class KnownFile:
    """Invariant: the bytes of the file from ``known_from`` on are those that were given to this object."""

    def __init__(self, known_from: int, keeps_content: bool) -> None:
        self.known_from = known_from
        self._content = bytearray() if keeps_content else None

    def append(self, buffers: Iterable[Buffer]) -> None:
        if self._content is not None and self.known_from != NOTHING_KNOWN:
            for buffer in buffers:
                self._content += memoryview(buffer).cast("B")

    def write_at(self, position: int, data: Buffer) -> None:
        if self._content is None or self.known_from == NOTHING_KNOWN:
            return
        view = memoryview(data).cast("B")
        start = position - self.known_from
        if start < 0:
            view, start = view[-start:], 0
        if start > len(self._content):
            self._content += bytes(start - len(self._content))
        self._content[start : start + len(view)] = view

    def truncate(self, size: int) -> None:
        if self.known_from == NOTHING_KNOWN:
            return
        if size < self.known_from:
            self.known_from = size
        if self._content is not None:
            kept = size - self.known_from
            del self._content[kept:]
            self._content += bytes(kept - len(self._content))

    def forget(self) -> None:
        """Nothing is known from now on: a write failed, and wrote some part or nothing."""
        self.known_from = NOTHING_KNOWN
        if self._content is not None:
            self._content.clear()

    def read(self, position: int, length: int) -> bytes:
        assert self._content is not None
        start = position - self.known_from
        return bytes(self._content[start : start + length])


class KnownFiles:
    """The known files by their paths. A file that is renamed or removed while it is open stays known.

    Threads use it at once: the event loop, and those of offloaded jobs.
    """

    def __init__(self, folders: Sequence[str], *, keeps_content: bool) -> None:
        """``folders``: where no other process writes."""
        self._prefixes = tuple(f"{folder.rstrip('/')}/" for folder in folders)
        self._shared = tuple(f"{prefix}{SHARED_FOLDER}/" for prefix in self._prefixes)
        self._keeps_content = keeps_content
        self._folders: dict[str, dict[str, KnownFile]] = {}
        """Of each folder the files directly in it, by name."""
        self._lock = threading.Lock()

    def is_watched(self, path: str) -> bool:
        return path.startswith(self._prefixes) and not path.startswith(self._shared)

    def get(self, path: str) -> KnownFile | None:
        folder, _, name = path.rpartition("/")
        files = self._folders.get(folder)
        return None if files is None else files.get(name)

    def _put(self, path: str, known: KnownFile) -> None:
        folder, _, name = path.rpartition("/")
        self._folders.setdefault(folder, {})[name] = known

    def opened(self, path: str, size: int) -> KnownFile:
        """Return what is known of a file that is opened and has ``size`` bytes."""
        with self._lock:
            known = self.get(path)
            if known is None:
                known = KnownFile(size if self.is_watched(path) else NOTHING_KNOWN, self._keeps_content)
                if self.is_watched(path):
                    self._put(path, known)
            return known

    def replaced(self, path: str, data: bytes) -> None:
        if self.is_watched(path):
            known = KnownFile(0, self._keeps_content)
            known.append([data])
            with self._lock:
                self._put(path, known)

    def renamed(self, source: str, target: str) -> None:
        """A file, or a folder with all that is in it."""
        with self._lock:
            self._remove(target)
            for path, known in self._remove(source):
                to = target + path[len(source) :]
                if self.is_watched(to):
                    self._put(to, known)

    def linked(self, source: str, target: str) -> None:
        with self._lock:
            known = self.get(source)
            if known is not None and self.is_watched(target):
                self._put(target, known)

    def removed(self, path: str) -> None:
        """A file, or a folder with all that is in it."""
        with self._lock:
            self._remove(path)

    def _remove(self, path: str) -> list[tuple[str, KnownFile]]:
        folder, _, name = path.rpartition("/")
        files = self._folders.get(folder)
        if files is not None and name in files:
            return [(path, files.pop(name))]
        found: list[tuple[str, KnownFile]] = []
        for inside in [one for one in self._folders if one == path or one.startswith(f"{path}/")]:
            found += [(f"{inside}/{each}", known) for each, known in self._folders.pop(inside).items()]
        return found
