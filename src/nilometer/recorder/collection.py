"""A collection: one file with the recordings of several starts, compressed, to give to others.

It is a ZIP archive with ``COMMENT``. Each recording is a member: the header, and then its entries, as frames
of whole entries with their lengths in front (``u32``, big endian).
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from nilometer.recorder.tape import HEADER_MAX, Header, NotARecording

COMMENT = b"nilometer recordings 1"
FRAME_BYTES = 128 * 1024
"""So many bytes of entries make a frame, or one entry that is longer."""
FRAME_BYTES_MAX = 128 * 1024 * 1024
MEMBERS_MAX = 1_000
_LENGTH = 4
_ENCRYPTED = 1
"""The bit of a member's flags."""


class CollectionWriter:
    """Writes a collection to a new file, which only its owner may read. Close it, or else remove the file."""

    def __init__(self, path: str) -> None:
        """Raises OSError: FileExistsError if there is such a file."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        self._archive = zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED, allowZip64=True)
        self._archive.comment = COMMENT

    def add(self, name: str, header: Header, entries: Iterable[bytes]) -> None:
        """Add a recording; each of ``entries`` is a whole one. Raises OSError."""
        begun, size = list[bytes](), 0
        with self._archive.open(name, "w", force_zip64=True) as member:
            member.write(_framed([msgspec.msgpack.encode(header)]))
            for entry in entries:
                begun.append(entry)
                size += len(entry)
                if size >= FRAME_BYTES:
                    member.write(_framed(begun))
                    begun, size = [], 0
            if begun:
                member.write(_framed(begun))

    def close(self) -> None:
        """Raises OSError."""
        try:
            self._archive.close()
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Close a file that cannot be written to its end."""
        self._archive.fp = None  # it has nothing more to write
        try:
            self._file.close()
        except OSError:
            pass  # what could not be written is not wanted either


def _framed(parts: Sequence[bytes]) -> bytes:
    return b"".join((sum(map(len, parts)).to_bytes(_LENGTH, "big"), *parts))


def members_of(path: str) -> Sequence[str] | None:
    """Return the names of a collection's recordings; None if the file is none. Raises NotARecording for one
    that this module has not written, and OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.comment != COMMENT:
                return None
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return None
    if len(members) > MEMBERS_MAX:
        raise NotARecording(f"{path} has {len(members):,} recordings: {MEMBERS_MAX:,} can be read")
    for one in members:
        if one.compress_type != zipfile.ZIP_DEFLATED or one.flag_bits & _ENCRYPTED:
            raise NotARecording(
                f"{path} cannot be read: {one.filename} is encrypted, or not compressed as a saved one"
            )
    return [one.filename for one in members]


def member_bytes(path: str, name: str) -> int:
    """Return how much of the file a recording takes. Raises OSError, NotARecording."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.getinfo(name).compress_size
    except (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError) as error:
        raise NotARecording(f"{path} is damaged: {error}") from None


def read_member(path: str, name: str) -> Iterator[bytes]:
    """Yield the header, and then all entries, some at a time. Raises NotARecording and OSError."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            length_max = HEADER_MAX
            while head := member.read(_LENGTH):
                length = int.from_bytes(head, "big")
                if len(head) < _LENGTH or not 0 < length <= length_max:
                    raise NotARecording(f"{path} is damaged: {name} has a frame of {length:,} bytes")
                frame = member.read(length)
                if len(frame) < length:
                    raise NotARecording(f"{path} is damaged: {name} is cut short")
                yield frame
                length_max = FRAME_BYTES_MAX
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError) as error:
        raise NotARecording(f"{path} is damaged: {error}") from None
