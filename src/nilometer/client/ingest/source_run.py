"""A source while it is read: the open file, the position, and the check that the content is unchanged."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from gzip import BadGzipFile
from typing import Final

from nilometer.client.ingest.found_files import FoundFile, Identity, OpenFile, Stamp
from nilometer.client.ingest.line_splitter import LineSplitter
from nilometer.client.ingest.source import ContentMark, Fingerprint, Source
from nilometer.client.ingest.state_file import PATH_HEADER, SOURCE_HEADER

# Reads the content of an open file, plain or gzip, from any offset. Uses only the open file it is given.
#
# Offsets are offsets in the content: for a compressed file, in the decompressed content. A gzip file that is
# still being written is read as far as it goes; reading continues there when it has grown.

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


# Joins the lines of a trace with the line before them: one event, one record. Pure.
#
# A line that is indented, or that continues the trace of an exception in Java, Python, .NET or Go, belongs to
# the event that the line before it belongs to. An event is complete when the next one begins. Invariant: the
# lines that were added are the lines of the events returned and of the one that is open, in order.

LINES_MAX: Final = 1_000
"""The lines of one event. What follows is an event of its own."""

_CONTINUES: Final = re.compile(
    rb"[ \t]+[^ \t]|Caused by: |Suppressed: |Traceback \(most recent call last\):"
    rb"|(?:[A-Za-z_][A-Za-z0-9_]*\.)*[A-Z][A-Za-z0-9_]*(?:Error|Exception|Throwable|Interrupt|Exit)(?::|$)"
)
_IN_PYTHON: Final = re.compile(rb"During handling of the above|The above exception was the direct cause|$")
_IN_GO: Final = re.compile(
    rb"goroutine [0-9]+ \[|\[signal |created by |exit status [0-9]+$|panic: |[^ \t(]+\.[^ \t]+\(.*\)$|$"
)
_TRACEBACK: Final = b"Traceback (most recent call last):"
_PANIC: Final = re.compile(rb"(?:panic|fatal error): |goroutine [0-9]+ \[")


class EventJoiner:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """The lines of the open event."""
        self._size = 0
        self._more: re.Pattern[bytes] | None = None

    def add(self, line: bytes, size_max: int) -> list[bytes]:
        """Add a line; return the lines of the event that it completes, if any.

        An event has at most ``size_max`` bytes with newlines between its lines, unless one line has more.
        """
        if self.lines and self._continues(line, size_max):
            self.lines.append(line)
            self._size += 1 + len(line)
            if line.startswith(_TRACEBACK):
                self._more = _IN_PYTHON
            return []
        done, self.lines = self.lines, [line]
        self._size = len(line)
        self._more = _IN_GO if _PANIC.match(line) else _IN_PYTHON if line.startswith(_TRACEBACK) else None
        return done

    def take(self) -> list[bytes]:
        """End the open event and return its lines."""
        done, self.lines, self._size, self._more = self.lines, [], 0, None
        return done

    def _continues(self, line: bytes, size_max: int) -> bool:
        if len(self.lines) >= LINES_MAX or self._size + 1 + len(line) > size_max:
            return False
        return bool(_CONTINUES.match(line) or (self._more is not None and self._more.match(line)))


@dataclass(frozen=True, slots=True)
class Piece:
    """The result of one read."""

    data: bytes = b""
    is_intact: bool = True
    """False: the file was truncated or rewritten, and ``data`` is empty."""


class SourceRun:
    """Reads one source from its last position; owns ``opened``.

    The constructor raises OSError, or EOFError if the content ends before that position. ``tag`` is the
    ``source`` header of the records.
    """

    def __init__(self, source: Source, file: FoundFile, opened: OpenFile, tag: bytes) -> None:
        self.source = source
        self.path = file.path
        self.identity: Identity = file.identity
        self.is_compressed = file.is_compressed
        self._opened = opened
        self._reader = reader_of(opened, compressed=file.is_compressed)
        self.mark = ContentMark(
            lambda begin, end: read_up_to(opened, begin, end, compressed=file.is_compressed), source.offset
        )
        self._reader.seek(source.offset)
        self.splitter = LineSplitter(is_begin=not source.offset)
        self.joiner = EventJoiner()
        self.held = b""
        """The bytes since the begin of the open event, which ``mark`` does not have yet."""
        self.lines = source.lines
        self.headers = [(PATH_HEADER, source.path.encode("utf-8", "surrogateescape")), (SOURCE_HEADER, tag)]
        self.displaced = file.is_gone or file.path != source.path
        """Whether the file no longer has the path under which the source was found first."""
        self.deleted = file.is_gone
        """Whether the file has no name in the listed folders."""
        self.finished = False
        """Whether the end that was read is final."""
        self.read_at: Stamp | None = None
        """The file's stamp when it was read to its end; None while there may be more."""
        self.is_stalled = False
        """Whether reading stopped because the file was truncated or rewritten: the next look decides."""
        self.size = file.size
        """The size of the raw file when it was last seen."""
        self.grew_ms = 0

    def on_found(self, file: FoundFile) -> None:
        """Note that a look found the file as ``file``, under any name."""
        self.path, self.size, self.is_stalled = file.path, file.size, False
        self.displaced = file.is_gone or file.path != self.source.path
        self.deleted = file.is_gone

    @property
    def at_end(self) -> bool:
        return self.read_at is not None

    @property
    def is_complete(self) -> bool:
        """Whether the end that was reached is final: the end of a complete compressed file."""
        return self._reader.is_complete

    @property
    def raw_position(self) -> int:
        """The number of bytes read of the raw file."""
        return self._reader.raw_position

    def begins_as_known(self) -> bool:
        """Whether the opened file has the known beginning of the source; to be called before reading.

        The file may have been truncated and rewritten since a look found it. Raises OSError.
        """
        if self.source.offset:
            return self.mark.fingerprint() == self.source.fingerprint
        preview = self.source.preview
        if not preview.offset:
            return True  # nothing is known: it was empty
        return fingerprint_of(self._opened, preview.offset, compressed=self.is_compressed) == preview

    def is_intact(self) -> bool:
        """Whether the last bytes read are still in the file: it was neither truncated nor rewritten."""
        if self.is_compressed:
            return True
        recent = self.mark.recent
        begin = self.mark.position - len(recent)
        try:
            if not self.mark.position:
                return self.begins_as_known()
            size, _ = self._opened.stamp()
            return size >= self.mark.position and self._opened.read_at(begin, len(recent)) == recent
        except OSError:
            return False

    def read(self) -> Piece:
        """Return the next piece of content; may block. Raises BadGzipFile, OSError."""
        stamp = self._opened.stamp()
        self.size = stamp[0]
        data = self._reader.read()
        if not self.is_intact():  # checked after reading, so that ``data`` follows the content read before
            self.is_stalled = True
            return Piece(is_intact=False)
        self.read_at = None if data else stamp
        return Piece(data)

    def has_grown(self) -> bool:
        """Whether the file changed since it was read to its end. Raises OSError."""
        return self._opened.stamp() != self.read_at

    def as_file(self) -> FoundFile:
        """Return the open file as a found file without a name. Raises OSError."""
        size, modified_ns = self._opened.stamp()
        return FoundFile(self.path, *self.identity, size, modified_ns, is_gone=True)

    def opened_again(self) -> OpenFile:
        """Open the same file again; the caller closes the result."""
        return self._opened.again()

    def as_read(self) -> Source:
        """Return the source with its position after the lines sent; call it only between two pieces."""
        source = self.source.read_to(self.mark.fingerprint(), self.lines)
        return replace(source, read_at=self.read_at, finished=self.finished)

    def close(self) -> None:
        self._opened.close()
