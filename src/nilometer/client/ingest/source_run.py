"""A source while it is being read: its file, how far it was read, and whether that still stands there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nilometer.client.ingest.content_reader import fingerprint_of, read_up_to, reader_of
from nilometer.client.ingest.found_files import FoundFile, Identity, OpenFile, Stamp
from nilometer.client.ingest.line_splitter import LineSplitter
from nilometer.client.ingest.read_back import PATH_HEADER, SOURCE_HEADER
from nilometer.client.ingest.source import ContentMark, Source


@dataclass(frozen=True, slots=True)
class Piece:
    """What one reading gave."""

    data: bytes = b""
    is_intact: bool = True
    """Otherwise the file was truncated or written again, and ``data`` is empty."""


class SourceRun:
    """Owns ``opened``. Raises OSError, EOFError where it cannot be read up to where it was read before."""

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
        self.splitter = LineSplitter()
        self.lines = source.lines
        self.headers = [(PATH_HEADER, source.path.encode("utf-8", "surrogateescape")), (SOURCE_HEADER, tag)]
        self.displaced = file.is_gone or file.path != source.path
        """The name that the source was found under is another file's by now, or no file's."""
        self.deleted = file.is_gone
        """It has no name in the folders that are looked at."""
        self.finished = False
        """Its end is final."""
        self.read_at: Stamp | None = None
        """The file's stamp when all of it had been read; None while there may be more."""
        self.is_stalled = False
        """What was read is not there any more: the next look tells where it is."""
        self.size = file.size
        """Of the file as it lies there, when it was last seen."""
        self.grew_ms = 0

    def on_found(self, file: FoundFile) -> None:
        """A look found it, under whatever name."""
        self.path, self.size, self.is_stalled = file.path, file.size, False
        self.displaced = file.is_gone or file.path != self.source.path
        self.deleted = file.is_gone

    @property
    def at_end(self) -> bool:
        return self.read_at is not None

    @property
    def is_complete(self) -> bool:
        """Whether the end that was reached is final: that of a whole compressed file."""
        return self._reader.is_complete

    @property
    def raw_position(self) -> int:
        """Bytes read of the file as it lies there."""
        return self._reader.raw_position

    def begins_as_known(self) -> bool:
        """Whether the opened file begins with what is known of the source; asked before anything is read.

        The file may have been truncated and written again since a look found it. Raises OSError.
        """
        if self.source.offset:
            return self.mark.fingerprint() == self.source.fingerprint
        preview = self.source.preview
        if not preview.offset:
            return True  # it was empty
        return fingerprint_of(self._opened, preview.offset, compressed=self.is_compressed) == preview

    def is_intact(self) -> bool:
        """Whether what was read is still there, and can be read: neither truncated nor written again."""
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
        """The next piece of content. May stall. Raises BadGzipFile, OSError."""
        stamp = self._opened.stamp()
        self.size = stamp[0]
        data = self._reader.read()
        if not self.is_intact():  # asked after reading: so what was read follows what was read before
            self.is_stalled = True
            return Piece(is_intact=False)
        self.read_at = None if data else stamp
        return Piece(data)

    def has_grown(self) -> bool:
        """Whether the file changed since it was read to its end. Raises OSError."""
        return self._opened.stamp() != self.read_at

    def as_file(self) -> FoundFile:
        """As it is found when no look finds it: it is still open. Raises OSError."""
        size, modified_ns = self._opened.stamp()
        return FoundFile(self.path, *self.identity, size, modified_ns, is_gone=True)

    def opened_again(self) -> OpenFile:
        """The same file, to be closed by the caller."""
        return self._opened.again()

    def as_read(self) -> Source:
        """The source as far as its lines were given out; only between two pieces."""
        source = self.source.read_to(self.mark.fingerprint(), self.lines)
        return replace(source, read_at=self.read_at, finished=self.finished)

    def close(self) -> None:
        self._opened.close()
