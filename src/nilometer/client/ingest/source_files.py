"""The operating system's files: lists them, opens them, and holds unread ones open.

The only module of ingest that lists and opens files. Everything here may block and runs in threads.

A look lists every folder once, whatever the number of files and sources. A folder that changes while it is
listed is listed again, so that no rename happens within the listing that is used.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from nilometer.client.ingest.birth_time import birth_ns, birth_ns_of
from nilometer.client.ingest.found_files import FoundFile, Identity, Look, OpenFile, Stamp
from nilometer.client.ingest.held_files import HeldFiles
from nilometer.client.ingest.rotation_names import GZIP_SUFFIX, family, possible_originals

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
