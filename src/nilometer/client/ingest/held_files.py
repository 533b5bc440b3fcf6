"""Holds files open because they may be deleted before they are read. Opens them by a given function.

Two threads use it: the one that looks calls :meth:`HeldFiles.on_look`, the one that applies looks calls all
other methods. Files opened by a look are passed to the second thread in a queue; it owns the held files.

Invariant: every held file was found by a look, and is closed once the last look that found it changed has
been applied and does not need it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from nilometer.client.ingest.found_files import FoundFile, Identity, Look, OpenFile, Stamp

HELD_MAX = 256
"""The maximum number of files held at a time."""


@dataclass(slots=True)
class _Held:
    opened: OpenFile
    file: FoundFile
    """The file as the last look found it."""
    since: int
    """The number of the look that found it first."""
    changed: int
    """The number of the last look that found it changed."""


class HeldFiles:
    def __init__(self, opener: Callable[[FoundFile], OpenFile]) -> None:
        """``opener`` opens a found file; raises OSError, also if the name is another file's now."""
        self._opener = opener
        self._last: dict[Identity, Stamp] = {}
        self._opened: deque[_Held] = deque()
        """Files opened by looks and not taken over by the second thread yet."""
        self._opened_count = 0
        self._held: dict[Identity, _Held] = {}

    def on_look(self, look: Look) -> Look:
        """Open the files that are new or changed since the last look; return the look with ``opened`` set."""
        stamps = {(file[1], file[2]): (file[3], file[4]) for file in look.files}
        if stamps != self._last:
            self._open_changed(look)
            self._last = stamps
        return replace(look, opened=self._opened_count)

    def _open_changed(self, look: Look) -> None:
        for file in look.files:
            if self._last.get(file.identity) == file.stamp:
                continue
            if len(self._held) + len(self._opened) >= HELD_MAX:
                break
            try:
                self._opened.append(_Held(self._opener(file), file, look.number, look.number))
                self._opened_count += 1
            except OSError:
                continue  # deleted already, or unreadable: the reader will report that

    def unnamed(self, look: Look) -> list[FoundFile]:
        """Return the held files for which ``look`` found no name. Raises OSError."""
        self._take_over()
        if not self._held:
            return []
        named = {file.identity: file for file in look.files}
        found: list[FoundFile] = []
        for identity, held in self._held.items():
            if identity in named:
                held.file = named[identity]
            elif held.since <= look.number:
                size, modified_ns = held.opened.stamp()
                found.append(held.file._replace(size=size, modified_ns=modified_ns, is_gone=True))
        return found

    def open(self, file: FoundFile) -> OpenFile:
        """Open a file: again if it is held, else by its name. Raises OSError."""
        self._take_over()
        held = self._held.get(file.identity)
        return held.opened.again() if held is not None else self._opener(file)

    def birth_ns(self, file: FoundFile) -> int | None:
        """Return a held file's creation time in nanoseconds (0: unknown); None if it is not held."""
        self._take_over()
        held = self._held.get(file.identity)
        return held.opened.birth_ns() if held is not None else None

    def release(self, look: Look, keep: AbstractSet[Identity]) -> None:
        """Close the held files that have not changed after ``look``, except those in ``keep``."""
        self._take_over()
        for identity, held in list(self._held.items()):
            if held.changed <= look.number and identity not in keep:
                del self._held[identity]
                held.opened.close()

    def close(self) -> None:
        """Close all held files; no look may follow."""
        self._take_over()
        for held in self._held.values():
            held.opened.close()
        self._held.clear()

    def _take_over(self) -> None:
        while self._opened:
            new = self._opened.popleft()
            held = self._held.setdefault(new.file.identity, new)
            if held is not new:
                new.opened.close()
                held.file, held.changed = new.file, new.changed
