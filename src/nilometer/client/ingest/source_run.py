"""A source while it is being read: its file, how far it was read, and whether that still stands there."""

from __future__ import annotations

from nilometer.client.ingest import source_files
from nilometer.client.ingest.line_splitter import LineSplitter
from nilometer.client.ingest.matching import GZIP_SUFFIX, FoundFile
from nilometer.client.ingest.read_back import PATH_HEADER, SOURCE_HEADER
from nilometer.client.ingest.source import ContentMark, Source


class SourceRun:
    """Raises OSError or EOFError where the file cannot be read up to where it was read before."""

    def __init__(self, source: Source, file: FoundFile, tag: bytes) -> None:
        self.source = source
        self.path = file.path
        self.reader = source_files.ContentReader(file.path)
        try:
            self.mark = ContentMark(self.reader.read_range, source.offset)
            self.reader.seek(source.offset)
        except BaseException:
            self.reader.close()
            raise
        self.splitter = LineSplitter()
        self.lines = source.lines
        self.headers = [(PATH_HEADER, source.path.encode("utf-8", "surrogateescape")), (SOURCE_HEADER, tag)]
        self.displaced = file.path != source.path
        """The name that the source was found under is another file's by now, or nobody's."""
        self.finished = False
        """Its end is final."""
        self.grew_ms = 0
        self.at_end = False

    def is_still(self, file: FoundFile) -> bool:
        return self.reader.identity == (file.device, file.inode)

    def is_intact(self) -> bool:
        """Whether what was read is still there: neither truncated nor written anew."""
        if self.path.endswith(GZIP_SUFFIX):
            return True
        position, recent = self.mark.position, self.mark.recent
        begin = position - len(recent)
        return self.reader.size() >= position and self.reader.read_range(begin, position) == recent
