"""The files found by one look, and the interface of the file system for ingest. Types only."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from nilometer.client.ingest.rotation_names import GZIP_SUFFIX

Identity = tuple[int, int]
"""(device, inode)"""
Stamp = tuple[int, int]
"""(size in bytes, modification time in nanoseconds): while it stays, the content is taken as unchanged."""


class FoundFile(NamedTuple):
    path: str
    device: int
    inode: int
    size: int
    modified_ns: int = 0
    asked_for: bool = True
    """Whether the user named it or its folder. Otherwise it is in the folder of a named file."""
    is_gone: bool = False
    """Whether the file was deleted and is only held open; ``path`` was its last name."""

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
    """The result of one look: a listing of the folders."""

    number: int
    files: tuple[FoundFile, ...]
    errors: tuple[tuple[str, str], ...] = ()
    """(path, error text)"""
    named: frozenset[str] = frozenset()
    """The paths that the user named and that are not folders."""
    reached: frozenset[str] = frozenset()
    """The paths that the user named and whose folder could be read."""

    opened: int = 0
    """The number of files that this look and earlier ones opened to hold them.

    It makes two looks differ if a file appeared and vanished between them.
    """

    def is_as(self, other: Look | None) -> bool:
        """Whether ``other`` is equal except for ``number``."""
        return other is not None and replace(other, number=self.number) == self


class OpenFile(Protocol):
    """An open file; it stays the same file when its name is renamed, deleted or reused."""

    @property
    def identity(self) -> Identity: ...

    def stamp(self) -> Stamp: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes of the raw file from ``position``; fewer at its end. Raises OSError."""
        ...

    def birth_ns(self) -> int:
        """Return the file's creation time in nanoseconds since 1970; 0 if unknown."""
        ...

    def again(self) -> OpenFile:
        """Open the same file again; the caller closes the result."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """The interface of the file system. Its methods may block; they are called in threads."""

    def look(self, known: Set[Identity]) -> Look:
        """List the files and hold those open that changed since the last look.

        A file held open can be read even after it was deleted. ``known`` are files to be found under any
        name in the folders of the named files.
        """
        ...

    def unnamed(self, look: Look) -> list[FoundFile]:
        """Return the files held open for which ``look`` found no name."""
        ...

    def open(self, file: FoundFile) -> OpenFile:
        """Open a found file. Raises OSError; FileNotFoundError also if its name is another file's now."""
        ...

    def birth_ns(self, file: FoundFile) -> int:
        """Return the file's creation time in nanoseconds since 1970; 0 if unknown.

        It shows whether an inode was reused.
        """
        ...

    def release(self, look: Look, keep: Set[Identity]) -> None:
        """Close the held files that have not changed after ``look``, except those in ``keep``."""
        ...
