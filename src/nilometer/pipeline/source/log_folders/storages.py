"""Opens places with log folders: on this machine's disks, or in any storage that Arrow supports.

A *place* is a path, or a URI (``s3://bucket/logs``, ``hdfs://…``, ``gs://…``, ``file:///…``). Both have the
same interface, ``Disk``; places with a URI are read-only. What follows the ``?`` of a URI belongs to the
storage (``s3://bucket/logs?region=eu-west-1``), and to every place below it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import posixpath
import re
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from nilometer.runtime import Disk, Runtime

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem, FileType, NativeFile

T = TypeVar("T")
R = TypeVar("R")

REQUESTS_AT_ONCE = 16
"""How many files of a storage are read at once, where most of the time is spent waiting for its answers."""
_SCHEME = "://"
_CREDENTIALS = re.compile(r"://([^/@]*|[^/@:]*:(?!\d+/)[^@]*)@")
"""Also a secret with a slash that should be %2F; what follows a port is no secret."""


def is_uri(place: str) -> bool:
    return _SCHEME in place


def open_folder(place: str) -> tuple[Disk, str]:
    """Return the disk of a place and the place's path on it. Raises ValueError for an unknown URI."""
    if not is_uri(place):
        return Runtime.system().disk, place
    store, path = open_store(place)
    return cast(Disk, ArrowDisk(store)), path


def open_store(place: str) -> tuple[FileSystem, str]:
    """Return Arrow's file system of a URI, and the path in it. Raises ValueError for an unknown URI."""
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        return FileSystem.from_uri(place)
    except pa.ArrowInvalid as error:
        reason = str(error).replace(place, shown_folder(place))
        raise ValueError(f"{shown_folder(place)}: {reason}") from error


def each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of ``function``, which reads from a storage, for several items at once."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return list(pool.map(function, items))


def join(place: str, *names: str) -> str:
    """Return the place below ``place`` that ``names`` lead to."""
    base, mark, query = _parts(place)
    return posixpath.join(base, *names) + mark + query


def parent(place: str) -> str:
    """Return the place that contains ``place``."""
    base, mark, query = _parts(place)
    return posixpath.dirname(base) + mark + query


def trimmed(place: str) -> str:
    """Return the place without slashes at its end."""
    base, mark, query = _parts(place)
    return (base.rstrip("/") or "/") + mark + query


def shown_folder(place: str) -> str:
    """Return a place for messages: without credentials, and without the options of its storage."""
    return _CREDENTIALS.sub("://", _parts(place)[0])


def _parts(place: str) -> tuple[str, str, str]:
    """Divide a place at its query; a path has none, whatever characters it contains."""
    return place.partition("?") if is_uri(place) else (place, "", "")


@contextlib.contextmanager
def _removed_is_not_found(store: FileSystem, path: str) -> Generator[None]:
    """Raise FileNotFoundError where a storage has another error for a file that goes while it is read."""
    from pyarrow.fs import FileType

    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if store.get_file_info(path).type == FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from error
        raise


class ArrowFile:
    """An open file of an Arrow file system, read at any position."""

    def __init__(self, store: FileSystem, path: str, file: NativeFile) -> None:
        self._store = store
        self._path = path
        self._file = file

    @property
    def path(self) -> str:
        return self._path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        """Raises FileNotFoundError if the file was removed after it was opened."""
        length = min(length, max(self._file.size() - position, 0))
        with _removed_is_not_found(self._store, self._path):
            return self._file.read_at(length, position) if length else b""

    def close(self) -> None:
        self._file.close()


class ArrowDisk:
    """A read-only ``Disk`` over an Arrow file system; methods that write raise UnsupportedOperation."""

    def __init__(self, store: FileSystem) -> None:
        self._store = store

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> ArrowFile:
        if create or writable:
            self._refuse()
        return ArrowFile(self._store, path, self._store.open_input_file(path))

    def exists(self, path: str) -> bool:
        return self._info(path).type != self._kinds.NotFound

    def is_directory(self, path: str) -> bool:
        return self._info(path).type == self._kinds.Directory

    def file_size(self, path: str) -> int:
        info = self._info(path)
        if info.type == self._kinds.NotFound:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return info.size

    def modified_ms(self, path: str) -> int:
        return (self._info(path).mtime_ns or 0) // 1_000_000

    def list_directory(self, path: str) -> list[str]:
        from pyarrow.fs import FileSelector

        return sorted(info.base_name for info in self._store.get_file_info(FileSelector(path)))

    def read_file(self, path: str) -> bytes:
        with _removed_is_not_found(self._store, path), self._store.open_input_stream(path) as stream:
            return stream.read()

    def __getattr__(self, name: str) -> NoReturn:
        raise io.UnsupportedOperation(f"{name}: a place with a URI is read-only")

    @property
    def _kinds(self) -> type[FileType]:
        from pyarrow.fs import FileType

        return FileType

    def _info(self, path: str) -> FileInfo:
        return self._store.get_file_info(path)

    def _refuse(self) -> NoReturn:
        raise io.UnsupportedOperation("a place with a URI is read-only")
