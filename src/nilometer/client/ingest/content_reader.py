"""Reads the content of an open file, plain or gzip, from any offset. Uses only the open file it is given.

Offsets are offsets in the content: for a compressed file, in the decompressed content. A gzip file that is
still being written is read as far as it goes; reading continues there when it has grown.
"""

from __future__ import annotations

import zlib
from gzip import BadGzipFile

from nilometer.client.ingest.found_files import OpenFile
from nilometer.client.ingest.source import Fingerprint

READ_BYTES = 256 * 1024
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


class PlainReader:
    """Reads a plain file. ``position`` is the offset of the next byte to return."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0

    @property
    def raw_position(self) -> int:
        return self.position

    @property
    def is_complete(self) -> bool:
        """Whether the end that was reached is final: never, since a plain file can always grow."""
        return False

    def seek(self, offset: int) -> None:
        self.position = offset

    def read(self, length: int = READ_BYTES) -> bytes:
        """Return the next piece of content, at most ``length`` bytes; empty at the end. Raises OSError."""
        data = self._file.read_at(self.position, length)
        self.position += len(data)
        return data


class GzipReader:
    """Reads the members of a gzip file one after another; zeros after a member are padding."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.position = 0
        self.raw_position = 0
        """The number of bytes read of the compressed file."""
        self._raw = b""
        self._member: zlib._Decompress | None = None  # pyright: ignore[reportPrivateUsage]
        self._is_between_members = False

    @property
    def is_complete(self) -> bool:
        """Whether the bytes read so far are complete gzip members."""
        return self._is_between_members and not self._raw

    def seek(self, offset: int) -> None:
        """Move to ``offset``, by reading up to it. Raises EOFError if the content ends before it; OSError."""
        if offset < self.position:
            self.position = self.raw_position = 0
            self._raw, self._member, self._is_between_members = b"", None, False
        while self.position < offset:
            if not self.read(min(READ_BYTES, offset - self.position)):
                raise EOFError(f"the content ends at {self.position}, before {offset}")

    def read(self, length: int = READ_BYTES) -> bytes:
        """Return the next piece of content, at most ``length`` bytes; empty at the end, final or not.

        Raises BadGzipFile, OSError.
        """
        while True:
            if not self._raw:
                self._raw = self._file.read_at(self.raw_position, READ_BYTES)
                self.raw_position += len(self._raw)
            if self._is_between_members:
                self._raw = self._raw.lstrip(b"\0")
            at_end = not self._raw
            if at_end and self._member is None:
                return b""
            data = self._decompress(length)  # there may be output left without more input
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
    """Return the content in ``[begin, end)``; less if the content ends before ``end``. Raises OSError."""
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
    """Return the fingerprint of the first ``offset`` bytes of content.

    If the content is shorter, returns None or a fingerprint that matches no known one. Raises OSError.
    """
    if not compressed and file.stamp()[0] < offset:
        return None
    return Fingerprint.of(lambda begin, end: read_up_to(file, begin, end, compressed=compressed), offset)
