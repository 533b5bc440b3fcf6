"""Writing a cleaned segment, ``<base>.log.cleaned`` with its indexes, which will replace other segments.

The files are complete and durable before the replacement starts. A manifest (``<base>.inputs.cleaned``)
lists the segments that they replace; see :mod:`nilometer.storage.swapping`. Safe on any thread; the file pool
is not used.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from nilometer.runtime import Disk, File
from nilometer.storage import names, swapping
from nilometer.storage.segments.offset_index import OffsetIndex
from nilometer.storage.segments.time_index import NO_TIMESTAMP, TimeIndex
from nilometer.storage.segments.transaction_index import AbortedTxn
from nilometer.storage.swapping import Replacement
from nilometer.wire.compression import Bytes
from nilometer.wire.record_batch import BatchHeader

WRITE_BYTES = 256 << 10
"""How many bytes are buffered before they are written."""


class CleanedSegmentWriter:
    def __init__(self, disk: Disk, folder: str, inputs: Sequence[int], index_interval_bytes: int) -> None:
        """Create the log file. ``inputs``: base offsets of the segments to replace, in order."""
        self._disk = disk
        self._folder = folder
        self._inputs = tuple(inputs)
        self._base_offset = base_offset = inputs[0]
        self._index_interval_bytes = index_interval_bytes
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._aborted: list[AbortedTxn] = []
        self._gathered: list[Bytes] = []
        self._gathered_bytes = 0
        self._bytes_since_index_entry = 0
        self._max_timestamp, self._offset_of_max_timestamp = NO_TIMESTAMP, base_offset
        self._made: list[str] = []
        self.size = 0
        self._log: File | None = self._create(names.LOG_SUFFIX)

    def append(self, data: Bytes, header: BatchHeader) -> None:
        """Append a complete batch, with offsets above the previous ones."""
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = header.max_timestamp, header.last_offset
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._offsets.append(header.last_offset, self.size)
            self._times.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.size
        self._gathered.append(data)
        self._gathered_bytes += header.size
        self.size += header.size
        if self._gathered_bytes >= WRITE_BYTES:
            self._write_gathered()

    def append_aborted(self, entry: AbortedTxn) -> None:
        self._aborted.append(entry)

    def finish(self) -> Replacement:
        """Write the indexes and the manifest, and make all files durable. Blocks. Raises OSError."""
        self._write_gathered()
        log = self._log
        assert log is not None, "a cleaned segment is finished only once"
        log.sync()
        log.close()
        self._log = None
        self._times.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)
        outputs = [names.LOG_SUFFIX]
        contents = {
            names.INDEX_SUFFIX: self._offsets.to_bytes(),
            names.TIME_INDEX_SUFFIX: self._times.to_bytes(),
        }
        if self._aborted:
            contents[names.TXN_INDEX_SUFFIX] = b"".join(entry.encode() for entry in self._aborted)
        for suffix, content in contents.items():
            self._write_whole(suffix, content)
            outputs.append(suffix)
        manifest = swapping.encode_manifest(self._inputs, outputs)
        self._write_whole(names.SWAP_INPUTS_SUFFIX, manifest)
        self._disk.sync_directory(self._folder)
        return Replacement(self._folder, self._inputs, tuple(outputs), self.size)

    def discard(self) -> None:
        """Remove the files that were written. Raises OSError.

        Nothing is removed if the renaming to ``.swap`` was interrupted by an error: the remaining
        ``.cleaned`` files show a restart that the ``.swap`` files are not complete.
        """
        if self._log is not None:
            self._log.close()
            self._log = None
        swaps = [path.removesuffix(names.CLEANED_SUFFIX) + names.SWAP_SUFFIX for path in self._made]
        if any(self._disk.exists(path) for path in swaps):
            return
        for path in self._made:
            if self._disk.exists(path):
                self._disk.remove(path)

    def _create(self, suffix: str) -> File:
        path = posixpath.join(self._folder, names.offset_name(self._base_offset, suffix))
        path += names.CLEANED_SUFFIX
        file = self._disk.open(path, create=True)
        self._made.append(path)
        if file.size():
            file.truncate(0)
        return file

    def _write_whole(self, suffix: str, content: bytes) -> None:
        file = self._create(suffix)
        try:
            if content:
                file.append([content])
            file.sync()
        finally:
            file.close()

    def _write_gathered(self) -> None:
        if self._gathered:
            assert self._log is not None, "nothing is appended to a finished segment"
            self._log.append([b"".join(self._gathered)])
            self._gathered.clear()
            self._gathered_bytes = 0
