"""The files of one segment: their paths, and reading and writing of whole index files.

The state of an active segment is not kept here. Files come from the pool and are closed or returned at once;
methods marked "on any thread" do not use the pool.
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.segments import offset_index, time_index, transaction_index
from nilometer.storage.segments.file_pool import FilePool
from nilometer.storage.segments.index_cache import IndexCache, SegmentIndexes
from nilometer.storage.segments.offset_index import CorruptIndex, OffsetIndex
from nilometer.storage.segments.time_index import TimeIndex
from nilometer.storage.segments.transaction_index import AbortedTxn

_INDEX_FILES = (
    (names.INDEX_SUFFIX, offset_index.ENTRY_SIZE),
    (names.TIME_INDEX_SUFFIX, time_index.ENTRY_SIZE),
)


class SegmentFiles(NamedTuple):
    """The file pool and index cache that all segments of a process share."""

    pool: FilePool
    index_cache: IndexCache

    @classmethod
    def on(cls, disk: Disk, open_max: int = 1024) -> SegmentFiles:
        return cls(FilePool(disk, open_max), IndexCache())

    @property
    def disk(self) -> Disk:
        return self.pool.disk


class IndexFiles:
    __slots__ = ("_base_offset", "_disk", "_folder", "_pool")

    def __init__(self, pool: FilePool, folder: str, base_offset: int) -> None:
        self._pool = pool
        self._disk = pool.disk
        self._folder = folder
        self._base_offset = base_offset

    def path(self, suffix: str) -> str:
        return posixpath.join(self._folder, names.offset_name(self._base_offset, suffix))

    def check_exist(self) -> None:
        """Check that both index files exist with whole entries. Raises FileNotFoundError, CorruptIndex."""
        for suffix, entry_size in _INDEX_FILES:
            if self._disk.file_size(self.path(suffix)) % entry_size:
                raise CorruptIndex(f"{self.path(suffix)} ends inside an entry")

    def load(self, *, only_cached: bool) -> SegmentIndexes | None:
        """Read both indexes; None if ``only_cached`` and that would block. Raises as :meth:`check_exist`."""
        contents: list[bytes] = []
        for suffix, _ in _INDEX_FILES:
            file = self._pool.open(self.path(suffix))
            data = (file.read_at_if_cached if only_cached else file.read_at)(0, file.size())
            self._pool.forget(file.path)
            if data is None:
                return None
            contents.append(bytes(data))
        return self._parse(*contents)

    def load_apart(self) -> SegmentIndexes:
        """Read both indexes, on any thread. Raises as :meth:`check_exist`."""
        return self._parse(*(self._disk.read_file(self.path(suffix)) for suffix, _ in _INDEX_FILES))

    def last_time_entry(self) -> tuple[int, int]:
        """Read only the last time index entry (timestamp, offset), on any thread. Raises as `check_exist`."""
        file = self._disk.open(self.path(names.TIME_INDEX_SUFFIX), writable=False)
        try:
            start = max(file.size() - time_index.ENTRY_SIZE, 0)
            return TimeIndex.parse(self._base_offset, file.read_at(start, time_index.ENTRY_SIZE)).last_entry
        finally:
            file.close()

    def last_offset_entry(self) -> tuple[int, int] | None:
        """Read only the last offset index entry (offset, position), None if empty, on any thread.

        Raises as :meth:`check_exist`.
        """
        file = self._disk.open(self.path(names.INDEX_SUFFIX), writable=False)
        try:
            start = max(file.size() - offset_index.ENTRY_SIZE, 0)
            found = OffsetIndex.parse(self._base_offset, file.read_at(start, offset_index.ENTRY_SIZE))
            return (found.last_offset, found.last_position) if len(found) else None
        finally:
            file.close()

    def load_offsets_apart(self) -> OffsetIndex:
        """Read the offset index, on any thread. Raises as :meth:`check_exist`."""
        return OffsetIndex.parse(self._base_offset, self._disk.read_file(self.path(names.INDEX_SUFFIX)))

    def write_unwritten(self, indexes: SegmentIndexes) -> None:
        """Append the entries that are only in memory to the index files."""
        self.append(names.INDEX_SUFFIX, indexes.offsets.unwritten())
        self.append(names.TIME_INDEX_SUFFIX, indexes.times.unwritten())

    def cut_to(self, indexes: SegmentIndexes) -> None:
        """Truncate the files after the entries of ``indexes``, for example to remove preallocated zeros."""
        self.cut(names.INDEX_SUFFIX, len(indexes.offsets) * offset_index.ENTRY_SIZE)
        self.cut(names.TIME_INDEX_SUFFIX, len(indexes.times) * time_index.ENTRY_SIZE)

    def empty(self) -> None:
        """Make both index files empty, creating them if they are missing."""
        for suffix, _ in _INDEX_FILES:
            self.cut(suffix, 0)

    def append(self, suffix: str, data: bytes) -> None:
        if data:
            path = self.path(suffix)
            self._pool.open(path, create=True).append([data])
            self._pool.forget(path)

    def cut(self, suffix: str, size: int) -> None:
        """Truncate a file to at most ``size`` bytes, creating it if it is missing."""
        path = self.path(suffix)
        file = self._pool.open(path, create=True)
        if file.size() > size:
            file.truncate(size)
        self._pool.forget(path)

    def aborted(self) -> list[AbortedTxn]:
        """Read the ``.txnindex`` file, on any thread; empty if there is none. Raises CorruptIndex."""
        path = self.path(names.TXN_INDEX_SUFFIX)
        data = self._disk.read_file(path) if self._disk.exists(path) else b""
        return transaction_index.parse(self._base_offset, data)

    def existing(self) -> list[str]:
        """Return the paths of the segment's files that exist, the log file first."""
        paths = (self.path(suffix) for suffix in names.SEGMENT_SUFFIXES)
        return [path for path in paths if self._disk.exists(path)]

    def rename_with_suffix(self, suffix: str) -> list[str]:
        """Append ``suffix`` to the names of all files; return the new paths."""
        renamed: list[str] = []
        for path in self.existing():
            self._pool.forget(path)
            self._disk.rename(path, path + suffix)
            renamed.append(path + suffix)
        return renamed

    def _parse(self, offsets: bytes, times: bytes) -> SegmentIndexes:
        return SegmentIndexes(
            OffsetIndex.parse(self._base_offset, offsets), TimeIndex.parse(self._base_offset, times)
        )
