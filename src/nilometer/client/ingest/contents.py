"""Compares the contents of files and sources. Uses only the file system that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from gzip import BadGzipFile
from typing import TypeVar

from nilometer.client.ingest.found_files import GZIP_SUFFIX, Files, FoundFile, Identity, OpenFile, Stamp
from nilometer.client.ingest.source import HEAD_BYTES, Fingerprint, Source
from nilometer.client.ingest.source_run import SourceRun, fingerprint_of, read_up_to, reader_of

T = TypeVar("T")
_Compared = tuple[Identity, Stamp, Identity, Stamp]


class FileContents:
    """Implements ``matching.Contents``. A deleted file is read through the open file of its run."""

    def __init__(
        self, files: Files, runs: Mapping[int, SourceRun], report: Callable[[str, str], None]
    ) -> None:
        """``runs`` are the sources being read, by number; ``report`` is called with (path, error)."""
        self.verified: dict[int, tuple[Identity, Stamp]] = {}
        """Source number to the file last verified to be its file: valid while the file's stamp stays."""
        self._files = files
        self._runs = runs
        self._report = report
        self._compared: dict[_Compared, bool] = {}

    def head(self, file: FoundFile) -> bytes | None:
        def read_head(opened: OpenFile) -> bytes:
            try:
                return read_up_to(opened, 0, HEAD_BYTES, compressed=file.is_compressed)
            except BadGzipFile:
                return b""  # the reader will report the error

        return self._asking(file, read_head)

    def after_hole(self, file: FoundFile) -> bytes | None:
        def read_on(opened: OpenFile) -> bytes:
            reader = reader_of(opened, compressed=file.is_compressed)
            while data := reader.read():
                if found := data.lstrip(b"\0"):
                    return (found + reader.read(HEAD_BYTES))[:HEAD_BYTES]
            return b""

        return self._asking(file, read_on)

    def fingerprint(self, file: FoundFile, offset: int) -> Fingerprint | None:
        return self._asking(
            file, lambda opened: fingerprint_of(opened, offset, compressed=file.is_compressed)
        )

    def is_beginning(self, file: FoundFile, original: FoundFile) -> bool | None:
        """Whether all of ``file``'s content is the beginning of ``original``'s; None if one is unreadable."""
        # Compare the files as they are now, which may be newer than the look, like the other methods.
        stamp, original_stamp = self._stamp(file), self._stamp(original)
        if stamp is None or original_stamp is None:
            return None
        key = (file.identity, stamp, original.identity, original_stamp)
        known = self._compared.get(key)
        if known is None:
            size = self._asking(file, lambda opened: _content_size(opened, compressed=file.is_compressed))
            if size is None:
                return None
            of_file = self.fingerprint(file, size)
            of_original = self.fingerprint(original, size)
            if of_file is None:
                return None
            known = self._compared[key] = of_file == of_original
        return known

    def _stamp(self, file: FoundFile) -> Stamp | None:
        return self._asking(file, lambda opened: opened.stamp())

    def is_intact(self, source: Source, file: FoundFile) -> bool:
        run = self._runs.get(source.number)
        if run is not None and run.identity == file.identity:
            return run.is_intact()
        if self.verified.get(source.number) == (file.identity, file.stamp):
            return True
        if self.is_reborn(source, file):
            return False
        if not source.known.offset and file.is_compressed != source.path.endswith(GZIP_SUFFIX):
            return False  # the inode was reused: compressing a file creates another one
        if source.read_at == file.stamp or (source.skipped and not source.known.offset):
            return True
        return self.fingerprint(file, source.known.offset) == source.known

    def is_reborn(self, source: Source, file: FoundFile) -> bool:
        return bool(source.birth_ns) and self._files.birth_ns(file) not in (0, source.birth_ns)

    def forget_comparisons(self, present: set[Identity]) -> None:
        self._compared = {key: known for key, known in self._compared.items() if key[0] in present}

    def _asking(self, file: FoundFile, ask: Callable[[OpenFile], T]) -> T | None:
        """Open ``file``, return ``ask``'s result for it and close it; None if it changed or fails to read.

        Errors are reported, except for a missing file.
        """
        try:
            opened = self._open(file)
        except FileNotFoundError:
            return None  # renamed or deleted since it was found: the next look will show
        except OSError as error:
            self._report(file.path, error.strerror or str(error))
            return None
        try:
            if opened.stamp()[0] < file.size:
                return None  # truncated since it was found
            return ask(opened)
        except OSError as error:
            self._report(file.path, error.strerror or str(error))
            return None
        finally:
            opened.close()

    def _open(self, file: FoundFile) -> OpenFile:
        for run in self._runs.values() if file.is_gone else ():
            if run.identity == file.identity:
                return run.opened_again()
        return self._files.open(file)


def _content_size(file: OpenFile, *, compressed: bool) -> int:
    if not compressed:
        return file.stamp()[0]
    reader = reader_of(file, compressed=True)
    while reader.read():
        pass
    return reader.position
