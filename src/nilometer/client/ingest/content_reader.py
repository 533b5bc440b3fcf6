"""The content of an open file, plain or gzip, from any offset on. Pure over the open file it is given.

Offsets are those of the content: decompressed, where the file is compressed. A gzip file that is still being
written is read as far as it goes, and read on from there.
"""

from __future__ import annotations

import zlib
from gzip import BadGzipFile

from nilometer.client.ingest.found_files import OpenFile
from nilometer.client.ingest.source import Fingerprint

READ_BYTES = 256 * 1024
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class PlainReader:
    """Invariant: ``position`` bytes of content were given out."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0

    @property
    def raw_position(self) -> int:
        return self.position

    @property
    def is_complete(self) -> bool:
        """Whether the end that was reached is final: a plain file can always grow."""
        return False

    def seek(self, offset: int) -> None:
        self.position = offset

    def read(self, length: int = READ_BYTES) -> bytes:
        """The next piece of content; empty at the end. Raises OSError."""
        data = self._file.read_at(self.position, length)
        self.position += len(data)
        return data


class GzipReader:
    """Reads members one after another, as gzip does; zeros behind a member are padding."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0
        self.raw_position = 0
        """How far into the file as it lies there reading has come."""
        self._raw = b""
        self._member: zlib._Decompress | None = None
        self._is_between_members = False

    @property
    def is_complete(self) -> bool:
        """Whether the bytes read so far are whole members."""
        return self._is_between_members and not self._raw

    def seek(self, offset: int) -> None:
        """Raises EOFError where the content ends before ``offset``; OSError."""
        if offset < self.position:
            self.position = self.raw_position = 0
            self._raw, self._member, self._is_between_members = b"", None, False
        while self.position < offset:
            if not self.read(min(READ_BYTES, offset - self.position)):
                raise EOFError(f"the content ends at {self.position}, before {offset}")

    def read(self, length: int = READ_BYTES) -> bytes:
        """The next piece of content; empty at the end, final or not. Raises BadGzipFile, OSError."""
        while True:
            if not self._raw:
                self._raw = self._file.read_at(self.raw_position, READ_BYTES)
                self.raw_position += len(self._raw)
            if self._is_between_members:
                self._raw = self._raw.lstrip(b"\0")
            at_end = not self._raw
            if at_end and self._member is None:
                return b""
            data = self._decompress(length)  # without more input there may still be some output
            self.position += len(data)
            if data or at_end:
                return data

    def _decompress(self, length: int) -> bytes:
        if self._member is None:
            self._member, self._is_between_members = zlib.decompressobj(_GZIP_FORMAT), False
        try:
            data = self._member.decompress(self._raw, length)
        except zlib.error as error:
            raise BadGzipFile(f"not a gzip file, or a broken one ({error})") from error
        if self._member.eof:
            self._raw, self._member, self._is_between_members = self._member.unused_data, None, True
        else:
            self._raw = self._member.unconsumed_tail
        return data


ContentReader = PlainReader | GzipReader


def reader_of(file: OpenFile, *, compressed: bool) -> ContentReader:
    return GzipReader(file) if compressed else PlainReader(file)


def read_up_to(file: OpenFile, begin: int, end: int, *, compressed: bool) -> bytes:
    """That range of the content; less where it ends before. Raises OSError."""
    reader = reader_of(file, compressed=compressed)
    try:
        reader.seek(begin)
    except EOFError:
        return b""
    parts: list[bytes] = []
    left = end - begin
    while left > 0 and (data := reader.read(min(left, READ_BYTES))):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def fingerprint_of(file: OpenFile, offset: int, *, compressed: bool) -> Fingerprint | None:
    """Of the first ``offset`` bytes; None, or one that equals no other, where the content is shorter.

    Raises OSError.
    """
    if not compressed and file.stamp()[0] < offset:
        return None
    return Fingerprint.of(lambda begin, end: read_up_to(file, begin, end, compressed=compressed), offset)
