"""The object store of tiered topics: whole objects under names, each of which appears at once.

What every implementation promises, and what the tier relies on:

- an object that can be read is complete: of a write that fails, or whose writer dies, nothing is seen;
- :meth:`ObjectStore.create` succeeds once for a name, whichever processes try;
- when a write has returned, every later read in any process sees it, and it survives a crash;
- after an error that is *uncertain* a write may have happened, or may yet happen.

Names are ``/``-separated paths without ``.`` and ``..``. A listing (:meth:`ObjectStore.names`) is for finding
what may be removed: nothing else is concluded from what it lacks.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import posixpath
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from nilometer.runtime.disk import Disk, File, sync_ancestors

T = TypeVar("T")


class ObjectStoreError(Exception):
    """The store does not do what was asked. ``is_passing``: the same request may succeed later."""

    def __init__(self, message: str, *, is_passing: bool = True) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class ObjectNotFound(ObjectStoreError):
    """There is no object of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no object {name}", is_passing=False)
        self.name = name


class ObjectStore(Protocol):
    """Every method raises ObjectStoreError."""

    async def create(self, name: str, data: bytes) -> bool:
        """Write a new object; return False, and change nothing, if the name exists with other bytes.

        So the bytes of two writers must differ.
        """
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Write an object, or replace it."""
        ...

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        """Write an object of any size, holding a few of its parts in memory."""
        ...

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start``, or all to the end. Raises ObjectNotFound."""
        ...

    async def remove(self, name: str) -> None:
        """Remove an object; no error if there is none."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Return the names of all objects that begin with ``prefix``, sorted."""
        ...

    async def folders(self, folder: str) -> list[str]:
        """Return the folders directly in ``folder``, which ends with a slash, and so do they; sorted."""
        ...


class Listed(NamedTuple):
    """What a listing tells of an object."""

    bytes: int
    written_ms: int
    """When it was written, by the store's clock."""


class ListedStore(ObjectStore, Protocol):
    """A store whose listing tells more than names."""

    async def listed(self, prefix: str) -> dict[str, Listed]:
        """Return all objects that begin with ``prefix``. Raises ObjectStoreError."""
        ...


OpenObjectStore = Callable[[str, str], ObjectStore]
"""Opens the store at a URI (``file:///…``), for a process with a unique name. Raises ValueError."""


_UNFINISHED = ".unfinished"
"""The end of the name of a file that is being written. Such a name is listed, so that it can be removed."""
_unfinished_numbers = itertools.count(1)
FOLDER_ATTEMPTS_MAX = 16
"""How often a folder is created again that another process has found empty, and removed."""


class FileObjectStore:
    """Objects as files below a folder: of this machine, or one that all brokers mount.

    The folder is never created: one that is not mounted must not be taken for an empty store.
    """

    def __init__(self, disk: Disk, root: str, writer: str) -> None:
        """``writer``: a name that no other process has, for the names of unfinished files."""
        self._disk = disk
        self._root = root
        self._writer = writer

    async def create(self, name: str, data: bytes) -> bool:
        def work() -> bool:
            path = self._path(name)
            temporary = self._begin(path, data)
            try:
                self._disk.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                self._disk.remove(temporary)
                self._disk.sync_directory(posixpath.dirname(path))
            return True

        return await self._run(name, work)

    async def put(self, name: str, data: bytes) -> None:
        def work() -> None:
            path = self._path(name)
            self._end(self._begin(path, data), path)

        await self._run(name, work)

    async def upload(self, name: str, parts: AsyncIterator[bytes]) -> None:
        path = self._path(name)
        temporary = await self._run(name, lambda: self._begin(path, b""))
        try:
            async for part in parts:
                await self._run(name, lambda part=part: self._extend(temporary, part))
        except BaseException:
            with contextlib.suppress(ObjectStoreError):  # the first error is the one to report
                await self._run(name, lambda: self._disk.remove(temporary))
            raise
        await self._run(name, lambda: self._end(temporary, path))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        def work() -> bytes:
            file = self._disk.open(self._path(name), writable=False)
            try:
                return file.read_at(start, file.size() - start if length is None else length)
            finally:
                file.close()

        return await self._run(name, work)

    async def remove(self, name: str) -> None:
        def work() -> None:
            path = self._path(name)
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(path)
                self._disk.sync_directory(posixpath.dirname(path))
                self._remove_empty_folders(posixpath.dirname(path))

        await self._run(name, work)

    def _remove_empty_folders(self, folder: str) -> None:
        """Remove ``folder``, and those above it, as far as nothing is in them."""
        while folder != self._root:
            try:
                self._disk.remove_empty_folder(folder)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                    return
                raise
            folder = posixpath.dirname(folder)

    async def names(self, prefix: str) -> list[str]:
        return await self._run(prefix, lambda: sorted(self._list(prefix)))

    async def listed(self, prefix: str) -> dict[str, Listed]:
        def work() -> dict[str, Listed]:
            found = dict[str, Listed]()
            for name in sorted(self._list(prefix)):
                path = self._path(name)
                with contextlib.suppress(FileNotFoundError):  # others have removed it meanwhile
                    found[name] = Listed(self._disk.file_size(path), self._disk.modified_ms(path))
            return found

        return await self._run(prefix, work)

    def _require_root(self) -> None:
        if not self._disk.is_directory(self._root):
            raise NotADirectoryError(errno.ENOTDIR, "no such folder: create it, or mount it", self._root)

    async def folders(self, folder: str) -> list[str]:
        def work() -> list[str]:
            self._require_root()
            path = self._path(folder)
            return [f"{folder}{one}/" for one in self._entries(path) if self._disk.is_directory(path + one)]

        return await self._run(folder, work)

    def _list(self, prefix: str) -> list[str]:
        self._require_root()
        found: list[str] = []
        folders = [posixpath.dirname(prefix)]
        while folders:
            folder = folders.pop()
            path = posixpath.join(self._root, folder)
            for one in self._entries(path):
                name = posixpath.join(folder, one)
                if not (name.startswith(prefix) or prefix.startswith(f"{name}/")):
                    continue
                if self._disk.is_directory(posixpath.join(self._root, name)):
                    folders.append(name)
                else:
                    found.append(name)
        return found

    def _entries(self, folder: str) -> list[str]:
        try:
            return self._disk.list_directory(folder)
        except FileNotFoundError:
            return []  # there is none, or others have removed it meanwhile

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _begin(self, path: str, data: bytes) -> str:
        temporary = f"{path}.{self._writer}-{next(_unfinished_numbers)}{_UNFINISHED}"
        try:
            with contextlib.closing(self._create(temporary)) as file:
                _append(file, data)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._disk.remove(temporary)
            raise
        return temporary

    def _create(self, path: str) -> File:
        """Create a file and its folders, which others remove when they are empty."""
        folder = posixpath.dirname(path)
        for _ in range(FOLDER_ATTEMPTS_MAX):
            try:
                if not self._disk.is_directory(folder):
                    self._require_root()
                    self._disk.make_directories(folder)
                    sync_ancestors(self._disk, folder)
                return self._disk.open(path, create=True)
            except FileNotFoundError:
                continue
        raise OSError(errno.EBUSY, "its folder is removed again and again", path)

    def _extend(self, temporary: str, data: bytes) -> None:
        with contextlib.closing(self._disk.open(temporary)) as file:
            _append(file, data)

    def _end(self, temporary: str, path: str) -> None:
        self._disk.rename(temporary, path)
        self._disk.sync_directory(posixpath.dirname(path))

    async def _run(self, name: str, work: Callable[[], T]) -> T:
        def with_folder() -> T:
            try:
                return work()
            except FileNotFoundError:
                self._require_root()
                raise

        try:
            return await self._disk.offload(with_folder)
        except FileNotFoundError as error:
            raise ObjectNotFound(name) from error
        except OSError as error:
            raise ObjectStoreError(f"{self._path(name)}: {error.strerror or error}") from error


def _append(file: File, data: bytes) -> None:
    if data:
        file.append([data])
        file.sync()


def folder_of(uri: str) -> str | None:
    """Return the folder that a ``file:`` URI names; None for another scheme. Raises ValueError."""
    parts = urlsplit(uri)
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
        raise ValueError(f"{uri!r} is not the URI of a folder: write file:///PATH")
    return path.rstrip("/") or "/"
