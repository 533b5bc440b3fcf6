"""Files as they were found by one look, and the file system as ingest sees it. Pure: types only."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from nilometer.client.ingest.rotation_names import GZIP_SUFFIX

Identity = tuple[int, int]
"""(device, inode)"""
Stamp = tuple[int, int]
"""(size in bytes, time of the last change in nanoseconds): while it stays, so does the content."""


class FoundFile(NamedTuple):
    path: str
    device: int
    inode: int
    size: int
    modified_ns: int = 0
    asked_for: bool = True
    """Whether the user named it, or its folder. Otherwise it lies beside such a file."""
    is_gone: bool = False
    """It has no name any more, and is only there because it is held open; ``path`` was its last one."""

    @property
    def identity(self) -> Identity:
        return self.device, self.inode

    @property
    def stamp(self) -> Stamp:
        return self.size, self.modified_ns

    @property
    def is_compressed(self) -> bool:
        return self.path.endswith(GZIP_SUFFIX)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the folders found."""

    number: int
    files: tuple[FoundFile, ...]
    errors: tuple[tuple[str, str], ...] = ()
    """(path, what is wrong with it)"""
    named: frozenset[str] = frozenset()
    """What the user asked for and is no folder."""
    reached: frozenset[str] = frozenset()
    """What the user asked for and whose folder could be read."""

    opened: int = 0
    """Files that looks have opened to hold them, this one and those before. One may have come and be gone."""

    def is_as(self, other: Look | None) -> bool:
        return other is not None and replace(other, number=self.number) == self


class OpenFile(Protocol):
    """An open file: the same one whatever happens to its name."""

    @property
    def identity(self) -> Identity: ...

    def stamp(self) -> Stamp: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes of the file as it lies there; fewer only at its end. Raises OSError."""
        ...

    def birth_ns(self) -> int:
        """When the file was created; 0 where the system does not tell."""
        ...

    def again(self) -> OpenFile:
        """The same file, to be closed by itself."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """The file system. All methods may stall and are called outside the event loop."""

    def look(self, known: Set[Identity]) -> Look:
        """What is there now. Holds what changed since the last look, so that it may be deleted before it
        is read. ``known``: files that are looked for under any name in the folders of the named ones."""
        ...

    def unnamed(self, look: Look) -> list[FoundFile]:
        """Files that are held and that ``look`` found no name of any more."""
        ...

    def open(self, file: FoundFile) -> OpenFile:
        """Raises OSError; FileNotFoundError too where another file has the name by now."""
        ...

    def birth_ns(self, file: FoundFile) -> int:
        """When the file was created; 0 where the system does not tell. Tells an inode that is used again."""
        ...

    def release(self, look: Look, keep: Set[Identity]) -> None:
        """Let go of what is held and has not changed after ``look``, other than ``keep``."""
        ...
