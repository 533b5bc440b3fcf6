"""The operating system's files as sources of lines: found, told apart, read, plain or gzip.

The one room of ingest that touches files. Offsets are always those of the content: decompressed, where the
file is compressed.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
from collections.abc import Callable, Iterable
from typing import BinaryIO, cast

from nilometer.client.ingest.matching import FoundFile, is_rotation_name
from nilometer.client.ingest.source import HEAD_BYTES, Fingerprint, Source

READ_BYTES = 256 * 1024
SNIFF_BYTES = 1024

Complain = Callable[[str, str], None]
"""(path, what is wrong with it)"""


class ContentReader:
    """An open file. It goes on reading the same file whatever happens to its name."""

    def __init__(self, path: str) -> None:
        self._raw = io.FileIO(path)
        self._is_compressed = path.endswith(".gz")
        self._content = cast(BinaryIO, self._raw)
        if self._is_compressed:
            self._content = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw, mode="rb"))
        self.path = path

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self._raw.fileno())
        return status.st_dev, status.st_ino

    def size(self) -> int:
        """Bytes of the file as it lies there."""
        return os.fstat(self._raw.fileno()).st_size

    def raw_position(self) -> int:
        """How far into the file as it lies there reading has come: for showing progress."""
        return self._raw.tell()

    def seek(self, offset: int) -> None:
        self._content.seek(offset)

    def read(self) -> bytes:
        """The next piece of content; empty at the end. Raises OSError, EOFError where a gzip file is torn."""
        return self._content.read(READ_BYTES)

    def read_range(self, begin: int, end: int) -> bytes:
        """Part of the content, without moving on: plain files only are read so while they are being read."""
        if not self._is_compressed:
            return os.pread(self._raw.fileno(), end - begin, begin)
        self._content.seek(begin)
        parts: list[bytes] = []
        left = end - begin
        while left and (data := self._content.read(left)):
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def close(self) -> None:
        self._content.close()
        self._raw.close()


def fingerprint(path: str, offset: int) -> Fingerprint:
    """Of the first ``offset`` bytes of a file's content."""
    reader = ContentReader(path)
    try:
        return Fingerprint.of(reader.read_range, offset)
    finally:
        reader.close()


def begins_with(file: FoundFile, source: Source) -> bool:
    """Whether a file's content begins with what is known of ``source``; no for what cannot be read."""
    try:
        return fingerprint(file.path, source.known.offset) == source.known
    except (OSError, EOFError):
        return False


def preview(path: str) -> bytes:
    """The first bytes of a file; none for what cannot be read: reading it will say why."""
    try:
        reader = ContentReader(path)
    except OSError:
        return b""
    try:
        return reader.read_range(0, HEAD_BYTES)
    except (OSError, EOFError):
        return b""
    finally:
        reader.close()


def find_files(paths: Iterable[str], complain: Complain, *, follow: bool) -> list[FoundFile]:
    """The files that ``paths`` name, and those in the folders that they name, by name.

    In folders, hidden files and files that are not text are passed over, and so are compressed ones when
    files are followed: those are rotated copies.
    """
    found: dict[tuple[int, int], FoundFile] = {}
    for path in paths:
        absolute = os.path.abspath(path)
        if os.path.isdir(absolute):
            for inside in _walk(absolute, complain):
                if not (follow and inside.endswith(".gz")):
                    _add(found, inside, complain, named=False)
        elif os.path.exists(absolute) or not follow:
            _add(found, absolute, complain, named=True)
    return sorted(found.values(), key=lambda file: file.path)


def find_siblings(sources: Iterable[Source], known: Iterable[FoundFile]) -> list[FoundFile]:
    """Files beside those of ``sources`` that rotation may have made of them, and that are not ``known``."""
    seen = {(file.device, file.inode) for file in known}
    found: dict[tuple[int, int], FoundFile] = {}
    for source in sources:
        folder = os.path.dirname(source.path)
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue  # the folder is gone, and what was in it
        for name in names:
            path = os.path.join(folder, name)
            file = _status(path)
            if file is None or (file.device, file.inode) in seen:
                continue
            if (file.device, file.inode) == (source.device, source.inode) or is_rotation_name(
                path, source.path
            ):
                found[file.device, file.inode] = FoundFile(
                    path, file.device, file.inode, file.size, asked_for=False
                )
    return list(found.values())


def is_at_or_in(path: str, place: str) -> bool:
    """Whether ``path``, which is absolute, is ``place`` or lies in that folder."""
    absolute = os.path.abspath(place)
    return path == absolute or path.startswith(absolute.rstrip("/") + "/")


def _walk(folder: str, complain: Complain) -> Iterable[str]:
    def on_error(problem: OSError) -> None:
        complain(problem.filename or folder, problem.strerror or str(problem))

    for parent, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.join(parent, name)


def _add(found: dict[tuple[int, int], FoundFile], path: str, complain: Complain, *, named: bool) -> None:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            if named:
                complain(path, "is not a file or a folder")
            return
        if not named and not _is_text(path):
            return
    except (OSError, EOFError) as problem:
        complain(path, getattr(problem, "strerror", None) or str(problem))
        return
    file = FoundFile(path, status.st_dev, status.st_ino, status.st_size)
    found.setdefault((file.device, file.inode), file)


def _status(path: str) -> FoundFile | None:
    try:
        status = os.stat(path)
    except OSError:
        return None  # gone since the folder was listed
    if not stat.S_ISREG(status.st_mode):
        return None
    return FoundFile(path, status.st_dev, status.st_ino, status.st_size)


def _is_text(path: str) -> bool:
    """Whether a file in a folder looks like lines: no NUL among its first bytes."""
    reader = ContentReader(path)
    try:
        return b"\x00" not in reader.read_range(0, SNIFF_BYTES)
    finally:
        reader.close()
