"""Writes the files of an archive: to a folder of this machine, or to any storage that Arrow supports.

Invariant: under its name a file is complete. On this machine it is written under another name, made durable
and renamed. An object of an object store appears when its upload ends; one whose upload failed is removed,
and no name is used by two uploads. Raises TargetError for whatever the storage refuses.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import posixpath
import re
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.source.log_folders.storages import is_uri, open_store, shown_folder
from nilometer.runtime import Runtime
from nilometer.runtime.disk import sync_ancestors

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_OBJECT_STORES = ("s3", "gcs", "abfs")
_temporary_numbers = itertools.count(1)

_CAUSES = (
    (r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist", "its bucket does not exist: create it first"),
    (
        r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE|SignatureDoesNotMatch"
        r"|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT|HTTP response code: 40[13]|code 40[13]\b",
        "access was denied: check the credentials (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
        "environment, a profile in ~/.aws, or s3://KEY:SECRET@bucket/…) and what they may do",
    ),
    (
        r"NETWORK_CONNECTION|curlCode|Could ?n.t connect",
        "it cannot be reached: check the URL (endpoint_override=HOST:PORT and scheme=http are for a server "
        "of your own)",
    ),
)


class TargetError(PipelineError):
    """The archive's storage refuses something: the message says where, and what to do."""


class Stored(NamedTuple):
    """A file of the storage."""

    bytes: int
    modified_s: float
    """The time when it was written, in seconds since 1970, by the storage's clock; NaN if that is unknown."""


class ArchiveTarget(Protocol):
    """The storage of one archive. Paths are relative to the archive."""

    @property
    def place(self) -> str: ...

    def require(self) -> None:
        """Check that files can be written here, as far as that shows beforehand."""
        ...

    def files(self, folder: str) -> dict[str, Stored]:
        """Return the files in a folder by name; none if there is no such folder."""
        ...

    def write(self, path: str, pieces: Iterable[bytes]) -> int:
        """Write a file that does not exist, and its folders; return its size in bytes."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone."""
        ...


def open_target(place: str) -> ArchiveTarget:
    """Open the storage of an archive: a path or a URI. Raises TargetError."""
    if not is_uri(place):
        return LocalTarget(place, place)
    try:
        with explained(place):
            store, path = open_store(place)
    except ValueError as error:
        raise TargetError(str(error)) from error
    if store.type_name == "local":
        return LocalTarget(place, path)
    return ArrowTarget(place, store, path)


@contextlib.contextmanager
def explained(place: str) -> Generator[None]:
    """Raise the storage's errors of this block as TargetError, with what to do."""
    try:
        yield
    except OSError as error:
        raise TargetError(f"{shown_folder(place)}: {explanation(error)}") from error


def explanation(error: OSError) -> str:
    """Return the cause of an error of a storage, and what to do."""
    if error.errno == errno.ENOSPC:
        return "no space is left on its device: free some, and run the same command again"
    text = str(error)
    for pattern, cause in _CAUSES:
        if re.search(pattern, text):
            return cause
    return error.strerror or text


class LocalTarget:
    def __init__(self, place: str, root: str) -> None:
        self.place = place
        self._root = posixpath.abspath(root)
        self._disk = Runtime.system().disk

    def require(self) -> None:
        above = posixpath.dirname(self._root)
        if not self._disk.is_directory(above):
            raise TargetError(f"{shown_folder(self.place)}: the folder {above} does not exist")
        with explained(self.place):
            self._disk.make_directories(self._root)

    def files(self, folder: str) -> dict[str, Stored]:
        path = posixpath.join(self._root, folder)
        with explained(self.place):
            try:
                with os.scandir(path) as entries:
                    found = {one.name: one.stat() for one in entries if one.is_file()}
                    return {name: Stored(one.st_size, one.st_mtime) for name, one in found.items()}
            except FileNotFoundError:
                return {}

    def write(self, path: str, pieces: Iterable[bytes]) -> int:
        target = posixpath.join(self._root, path)
        folder = posixpath.dirname(target)
        temporary = posixpath.join(
            folder, f".{posixpath.basename(path)}.{os.getpid()}-{next(_temporary_numbers)}.tmp"
        )
        with explained(self.place):
            self._disk.make_directories(folder)
            file = self._disk.open(temporary, create=True)
        try:
            size = 0
            for piece in pieces:
                with explained(self.place):
                    size += file.append([piece])
            with explained(self.place):
                file.sync()
                self._disk.rename(temporary, target)
                sync_ancestors(self._disk, target)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                self._disk.remove(temporary)
            raise
        finally:
            file.close()
        return size

    def remove(self, path: str) -> None:
        with explained(self.place), contextlib.suppress(FileNotFoundError):
            self._disk.remove(posixpath.join(self._root, path))


class ArrowTarget:
    def __init__(self, place: str, store: FileSystem, root: str) -> None:
        self.place = place
        self._store = store
        self._root = root
        self._has_folders = store.type_name not in _OBJECT_STORES

    def require(self) -> None:
        from pyarrow.fs import FileType

        if self._has_folders:
            return
        bucket = self._root.partition("/")[0]
        if not bucket:
            raise TargetError(f"{shown_folder(self.place)} names no bucket")
        with explained(self.place):
            if self._store.get_file_info(bucket).type == FileType.NotFound:
                raise TargetError(
                    f"{shown_folder(self.place)}: its bucket does not exist: create {bucket} first"
                )

    def files(self, folder: str) -> dict[str, Stored]:
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(posixpath.join(self._root, folder), allow_not_found=True)
        with explained(self.place):
            found = self._store.get_file_info(selector)
        return {
            one.base_name: Stored(one.size, math.nan if one.mtime is None else one.mtime.timestamp())
            for one in found
            if one.type == FileType.File
        }

    def write(self, path: str, pieces: Iterable[bytes]) -> int:
        target = posixpath.join(self._root, path)
        with explained(self.place):
            if self._has_folders:
                self._store.create_dir(posixpath.dirname(target), recursive=True)
            stream = self._store.open_output_stream(target, compression=None)
        size = 0
        try:
            for piece in pieces:
                with explained(self.place):
                    size += stream.write(piece)
            with explained(self.place):
                stream.close()
                stored = self._store.get_file_info(target).size
        except BaseException:
            # To close the stream ends the upload, which cannot be given up: what it left is removed.
            with contextlib.suppress(OSError):  # the first error is the one to report
                stream.close()
                self._store.delete_file(target)
            raise
        if stored != size:
            raise TargetError(
                f"{shown_folder(self.place)}: {path} has {stored} bytes, but {size} were written"
            )
        return size

    def remove(self, path: str) -> None:
        with explained(self.place), contextlib.suppress(FileNotFoundError):
            self._store.delete_file(posixpath.join(self._root, path))
