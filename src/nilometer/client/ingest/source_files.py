"""The operating system's files: lists them, opens them, and holds unread ones open.

The only module of ingest that lists and opens files. Everything here may block and runs in threads.

A look lists every folder once, whatever the number of files and sources. A folder that changes while it is
listed is listed again, so that no rename happens within the listing that is used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from nilometer.client.ingest.found_files import (
    GZIP_SUFFIX,
    FoundFile,
    Identity,
    Look,
    OpenFile,
    Stamp,
    family,
    possible_originals,
)

# The creation time of a file. Linux only, by statx(2), which Python 3.11 does not offer.

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_STATX_INO, _STATX_BTIME = 0x100, 0x800
_BUFFER_BYTES = 256
_MASK, _INODE, _BTIME = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=qI")
_INODE_OFFSET, _BTIME_OFFSET = 0x20, 0x50


def birth_ns(path: str, inode: int) -> int:
    """Return the creation time of a file in nanoseconds since 1970.

    Returns 0 if the system does not provide it, or ``path`` is no longer the file with ``inode``.
    """
    return _birth_ns(_AT_FDCWD, os.fsencode(path), 0, inode)


def birth_ns_of(descriptor: int, inode: int) -> int:
    """Return the creation time of an open file in nanoseconds since 1970; 0 if unknown."""
    return _birth_ns(descriptor, b"", _AT_EMPTY_PATH, inode)


def _birth_ns(folder: int, path: bytes, flags: int, inode: int) -> int:
    statx = _statx()
    if statx is None:
        return 0
    buffer = ctypes.create_string_buffer(_BUFFER_BYTES)
    if statx(folder, path, flags, _STATX_INO | _STATX_BTIME, buffer) != 0:
        return 0
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return 0
    if _INODE.unpack_from(buffer, _INODE_OFFSET)[0] != inode:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_OFFSET)
    return seconds * 1_000_000_000 + nanoseconds


@functools.cache
def _statx() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None  # another system, or an old C library


# Holds files open because they may be deleted before they are read. Opens them by a given function.
#
# Two threads use it: the one that looks calls :meth:`HeldFiles.on_look`, the one that applies looks calls all
# other methods. Files opened by a look are passed to the second thread in a queue; it owns the held files.
#
# Invariant: every held file was found by a look, and is closed once the last look that found it changed has
# been applied and does not need it.

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


LISTINGS_MAX = 5
"""The maximum number of listings of a folder that keeps changing; then the last one is used."""
REMEMBERED_NAMES = 1 << 16

_family = functools.lru_cache(REMEMBERED_NAMES)(family)
_possible_originals = functools.lru_cache(REMEMBERED_NAMES)(possible_originals)


class OpenedFile:
    """Implements ``OpenFile``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.identity: Identity = (status.st_dev, status.st_ino)

    @classmethod
    def open(cls, file: FoundFile) -> OpenedFile:
        """Open a found file. Raises FileNotFoundError if its name is gone or another file's; OSError."""
        opened = cls(os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        if opened.identity != file.identity:
            opened.close()
            raise FileNotFoundError(f"{file.path} was replaced by another file")
        return opened

    def stamp(self) -> Stamp:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def read_at(self, position: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, position)

    def birth_ns(self) -> int:
        return birth_ns_of(self._descriptor, self.identity[1])

    def again(self) -> OpenedFile:
        """Open the same file again; the caller closes the result."""
        return OpenedFile(os.dup(self._descriptor))

    def close(self) -> None:
        os.close(self._descriptor)


class OsFiles:
    """Implements ``Files``."""

    def __init__(self, paths: Iterable[str], *, follow: bool) -> None:
        self._paths = [os.path.abspath(path) for path in paths]
        self._follow = follow
        self._looks = 0
        self._files: tuple[FoundFile, ...] = ()
        self._held = HeldFiles(OpenedFile.open)

    def look(self, known: AbstractSet[Identity]) -> Look:
        self._looks += 1
        looking = _Looking(known, self._paths, follow=self._follow)
        look = looking.look(self._looks)
        if look.files == self._files:
            look = replace(look, files=self._files)  # the same object makes comparisons fast
        self._files = look.files
        return self._held.on_look(look) if self._follow else look

    def unnamed(self, look: Look) -> list[FoundFile]:
        return self._held.unnamed(look)

    def open(self, file: FoundFile) -> OpenFile:
        return self._held.open(file)

    def birth_ns(self, file: FoundFile) -> int:
        held = self._held.birth_ns(file)
        return birth_ns(file.path, file.inode) if held is None else held

    def release(self, look: Look, keep: AbstractSet[Identity]) -> None:
        self._held.release(look, keep)

    def close(self) -> None:
        self._held.close()


class _Looking:
    """Performs one look."""

    def __init__(self, known: AbstractSet[Identity], paths: Sequence[str], *, follow: bool) -> None:
        self._known_inodes = {inode for _, inode in known}
        self._paths = paths
        self._follow = follow
        self._found: dict[Identity, FoundFile] = {}
        self._errors: list[tuple[str, str]] = []
        self._named: list[str] = []
        self._reached: list[str] = []

    def look(self, number: int) -> Look:
        for path in self._paths:
            if os.path.isdir(path):
                self._walk(path)
            else:
                self._named.append(path)
        by_folder: dict[str, list[str]] = {}
        for path in self._named:
            by_folder.setdefault(os.path.dirname(path), []).append(path)
        for folder, paths in by_folder.items():
            self._look_beside(folder, paths)
        return Look(
            number,
            tuple(self._found.values()),
            tuple(self._errors),
            frozenset(self._named),
            frozenset(self._reached),
        )

    def _walk(self, top: str) -> None:
        folders = [top]
        while folders:
            folder = folders.pop()
            try:
                files, inside = _list_folder(folder, lambda name, _inode: not name.startswith("."))
            except OSError as error:
                self._errors.append((folder, error.strerror or str(error)))
                continue
            if folder == top:
                self._reached.append(top)
            for file in files:
                if self._follow and file.path.endswith(GZIP_SUFFIX):
                    file = file._replace(asked_for=False)
                self._add(file)
            folders += reversed(inside)

    def _look_beside(self, folder: str, paths: Sequence[str]) -> None:
        """Add the named files of ``folder``, and the files there that rotation may have made from them."""
        asked = frozenset(paths)
        families = frozenset(family(os.path.basename(path)) for path in paths)

        def is_wanted(name: str, inode: int) -> bool:
            return (
                inode in self._known_inodes
                or _family(name) in families
                or os.path.join(folder, name) in asked
                or not asked.isdisjoint(_possible_originals(os.path.join(folder, name)))
            )

        try:
            files, folders = _list_folder(folder, is_wanted)
        except OSError as error:
            self._errors += [(path, error.strerror or str(error)) for path in paths if not self._follow]
            return
        self._reached += paths
        names = {file.path for file in files}
        for path in paths:
            if path not in names and (path in folders or os.path.exists(path)):
                self._errors.append((path, "is not a file or a folder"))
            elif path not in names and not self._follow:
                self._errors.append((path, os.strerror(2)))
        for file in files:
            if file.path in asked:
                self._add(file)
        for file in files:
            self._add(file._replace(asked_for=False))

    def _add(self, file: FoundFile) -> None:
        self._found.setdefault((file[1], file[2]), file)


def _list_folder(folder: str, is_wanted: Callable[[str, int], bool]) -> tuple[list[FoundFile], list[str]]:
    """Return a folder's regular files and the paths of its folders. Raises OSError.

    ``is_wanted`` gets name and inode of each entry.
    """
    files, folders, is_steady = _list_once(folder, is_wanted)
    for _ in range(LISTINGS_MAX - 1):
        if is_steady:
            break
        files, folders, is_steady = _list_once(folder, is_wanted)
    return files, folders


def _list_once(folder: str, is_wanted: Callable[[str, int], bool]) -> tuple[list[FoundFile], list[str], bool]:
    """List a folder once; also return whether nothing seems to have been renamed meanwhile."""
    files: list[FoundFile] = []
    folders: list[str] = []
    changed_ns = os.stat(folder).st_mtime_ns
    is_steady = True
    with os.scandir(folder) as entries:
        for entry in list(entries):
            inode = entry.inode()
            if not is_wanted(entry.name, inode):
                continue
            try:
                status = os.stat(entry.path)
            except OSError:
                is_steady = is_steady and entry.is_symlink()  # a dangling link is no rename
                continue
            if status.st_ino != inode and not entry.is_symlink() and not stat.S_ISDIR(status.st_mode):
                is_steady = False
            if stat.S_ISREG(status.st_mode):
                files.append(
                    FoundFile(entry.path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                )
            elif stat.S_ISDIR(status.st_mode) and not entry.is_symlink():
                folders.append(entry.path)
    return files, folders, is_steady and os.stat(folder).st_mtime_ns == changed_ns
