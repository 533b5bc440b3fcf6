"""Files that are held open because they may be deleted before they are read. Pure over how files are opened.

Looks, and what is made of them, run in two threads. :meth:`HeldFiles.on_look` belongs to the one, everything
else to the other. What a look opens is handed over in a queue; the other thread owns what is held.

Invariant: every file held was found by a look, and is closed once the look in which it changed last was taken
and has no need of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from nilometer.client.ingest.found_files import FoundFile, Identity, Look, OpenFile, Stamp

HELD_MAX = 256
"""Files held at a time."""


@dataclass(slots=True)
class _Held:
    opened: OpenFile
    file: FoundFile
    """As it was found last."""
    since: int
    """Number of the look that found it first."""
    changed: int
    """Number of the last look that found it changed."""


class HeldFiles:
    def __init__(self, opener: Callable[[FoundFile], OpenFile]) -> None:
        """``opener`` raises OSError; FileNotFoundError where another file has the name by now."""
        self._opener = opener
        self._last: dict[Identity, Stamp] = {}
        self._opened: deque[_Held] = deque()
        """By looks, to be held."""
        self._opened_count = 0
        self._held: dict[Identity, _Held] = {}

    def on_look(self, look: Look) -> Look:
        """Open what is new or changed since the last look. The look, with how many were opened."""
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
                continue  # gone already, or not to be read: reading it says so

    def unnamed(self, look: Look) -> list[FoundFile]:
        """Files held of which ``look`` found no name. Raises OSError."""
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
        """By its name, or the file that is held. Raises OSError."""
        self._take_over()
        held = self._held.get(file.identity)
        return held.opened.again() if held is not None else self._opener(file)

    def birth_ns(self, file: FoundFile) -> int | None:
        """When a file was created, 0 where the system does not tell; None where it is not held."""
        self._take_over()
        held = self._held.get(file.identity)
        return held.opened.birth_ns() if held is not None else None

    def release(self, look: Look, keep: AbstractSet[Identity]) -> None:
        """Let go of what has not changed after ``look``, other than ``keep``."""
        self._take_over()
        for identity, held in list(self._held.items()):
            if held.changed <= look.number and identity not in keep:
                del self._held[identity]
                held.opened.close()

    def close(self) -> None:
        """No look may come after it."""
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
