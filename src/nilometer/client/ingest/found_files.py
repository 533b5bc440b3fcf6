"""The files found by one look, the names of rotated ones, and the interface of the file system for ingest.
Accesses no file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

# Recognises the names of rotated files. Pure.
#
# ``app.log`` becomes ``app.log.1``, ``app.log-20260131``, ``app.log.2.gz``, ``app-20260131.log``,
# ``app.1.log``, ``app.log.old`` and the like, in the same folder.

GZIP_SUFFIX = ".gz"
UNREADABLE_SUFFIXES = (".xz", ".bz2", ".zst", ".lz4", ".lzma", ".Z", ".zip", ".br")
"""Suffixes of compression formats that ingest cannot read."""

_MARK = r"(?:[._-](?:[0-9][0-9TZ_:.+-]*|old|prev|bak))+"
"""The marks that rotation adds to a name: a number, a date, "old"."""
_MARKED = re.compile(_MARK)
_SEPARATOR = re.compile(r"[._~-]")
_EXTENSION = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_AT_END = re.compile(_MARK + "$")
_BEFORE_EXTENSION = re.compile(rf"(?<=.){_MARK}(?=\.[A-Za-z][A-Za-z0-9]*$)")


def family(name: str) -> str:
    """Return the name without rotation marks: ``app.log`` for ``app.log.2.gz`` and for ``app-1.log``."""
    bare = name.removesuffix(GZIP_SUFFIX)
    return _BEFORE_EXTENSION.sub("", _AT_END.sub("", bare) or bare)


def possible_originals(path: str) -> list[str]:
    """Return the paths of files of which ``path`` may be a copy or a rotated file; most do not exist.

    They are its name up to a separator, with or without its extension.
    """
    folder, name = posixpath.split(path)
    bare = name.removesuffix(GZIP_SUFFIX)
    extension = _EXTENSION.search(bare)
    names = [bare]
    for cut in (found.start() for found in _SEPARATOR.finditer(bare, 1)):
        names.append(bare[:cut])
        if extension is not None and cut < extension.start():
            names.append(bare[:cut] + extension.group())
    return [posixpath.join(folder, one) for one in dict.fromkeys(names) if one != name]


def is_rotation_name(path: str, original: str) -> bool:
    """Whether rotation may have made ``path`` from ``original``, by their names; contents must decide."""
    folder, name = posixpath.split(path)
    original_folder, original_name = posixpath.split(original)
    return folder == original_folder and (
        name.startswith(original_name) or family(name) == family(original_name)
    )


def is_derived(path: str, original: str) -> bool:
    """Whether the name ``path`` is that of ``original`` with rotation marks added, and nothing else."""
    folder, name = posixpath.split(path)
    original_folder, original_name = posixpath.split(original)
    if folder != original_folder or name == original_name:
        return False
    bare = name.removesuffix(GZIP_SUFFIX)
    stem, extension = posixpath.splitext(original_name)
    return (
        bare == original_name
        or _is_marked(bare, original_name, "")
        or (bool(extension) and _is_marked(bare, stem, extension))
    )


def _is_marked(name: str, begin: str, end: str) -> bool:
    if not (name.startswith(begin) and name.endswith(end)):
        return False
    return _MARKED.fullmatch(name[len(begin) : len(name) - len(end)]) is not None


# The files found by one look, and the interface of the file system for ingest. Types only.

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
