"""Files that are held open because they may be deleted before they are read. Pure over how files are opened.

Invariant: every file held was found by a look, and is closed once a look was taken that has no need of it.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from nilometer.client.ingest.found_files import FoundFile, Identity, Look, OpenFile, Stamp

HELD_MAX = 256
"""Files held at a time."""


@dataclass(frozen=True, slots=True)
class _Held:
    opened: OpenFile
    file: FoundFile
    """As it was found last."""
    since: int
    """Number of the look that found it first."""


class HeldFiles:
    def __init__(self, opener: Callable[[FoundFile], OpenFile]) -> None:
        """``opener`` raises OSError; FileNotFoundError where another file has the name by now."""
        self._opener = opener
        self._last: dict[Identity, Stamp] = {}
        self._held: dict[Identity, _Held] = {}

    def on_look(self, look: Look) -> None:
        """Hold what is new or changed since the last look."""
        stamps = {(file[1], file[2]): (file[3], file[4]) for file in look.files}
        if stamps == self._last and not self._held:
            return
        for file in look.files:
            held = self._held.get(file.identity)
            if held is not None:
                self._held[file.identity] = replace(held, file=file)
            elif self._last.get(file.identity) != file.stamp and len(self._held) < HELD_MAX:
                try:
                    self._held[file.identity] = _Held(self._opener(file), file, look.number)
                except OSError:
                    continue  # gone already, or not to be read: reading it says so
        self._last = stamps

    def unnamed(self, look: Look) -> list[FoundFile]:
        """Files held of which ``look`` found no name. Raises OSError."""
        named = {file.identity for file in look.files}
        found: list[FoundFile] = []
        for identity, held in list(self._held.items()):
            if identity not in named and held.since <= look.number:
                size, modified_ns = held.opened.stamp()
                found.append(held.file._replace(size=size, modified_ns=modified_ns, is_gone=True))
        return found

    def open(self, file: FoundFile) -> OpenFile:
        """By its name, or the file that is held. Raises OSError."""
        held = self._held.get(file.identity)
        return held.opened.again() if held is not None else self._opener(file)

    def release(self, look: Look, keep: AbstractSet[Identity]) -> None:
        """Let go of what is held since ``look`` or longer, other than ``keep``."""
        for identity, held in list(self._held.items()):
            if held.since <= look.number and identity not in keep:
                del self._held[identity]
                held.opened.close()

    def close(self) -> None:
        for held in self._held.values():
            held.opened.close()
        self._held.clear()
