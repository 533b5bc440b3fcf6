"""A source while it is read: the open file, the position, and the check that the content is unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nilometer.client.ingest.content_reader import fingerprint_of, read_up_to, reader_of
from nilometer.client.ingest.event_joiner import EventJoiner
from nilometer.client.ingest.found_files import FoundFile, Identity, OpenFile, Stamp
from nilometer.client.ingest.line_splitter import LineSplitter
from nilometer.client.ingest.read_back import PATH_HEADER, SOURCE_HEADER
from nilometer.client.ingest.source import ContentMark, Source


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
