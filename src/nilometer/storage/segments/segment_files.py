"""The pool of open files that all logs of a process share; and the files of one segment: their paths, and
reading and writing of whole index files.

The state of an active segment is not kept here. Files come from the pool and are closed or returned at once;
methods marked "on any thread" do not use the pool.
"""

from __future__ import annotations

import posixpath
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from nilometer.runtime import Disk, File
from nilometer.storage import names
from nilometer.storage.segments.indexes import (
    OFFSET_ENTRY_SIZE,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_SIZE,
    CorruptIndex,
    IndexCache,
    OffsetIndex,
    SegmentIndexes,
    TimeIndex,
)
from nilometer.storage.segments.transaction_index import PackedEntries

# A bounded pool of open files, shared by all logs of a process.
#
# A broker may have ten thousand replicas and more segments than it may have file descriptors. Files are
# opened on demand, and the least recently used one is closed when the pool is full.
#
# Rules for users: use the pool on one thread only; use a :class:`File` from it at once and never keep it;
# work on another thread opens (and closes) its own files.

OPEN_FILES_MAX = 1024


class FilePool:
    __slots__ = ("_files", "_of_folder", "_open_max", "disk")

    def __init__(self, disk: Disk, open_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self._open_max = open_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._of_folder: dict[str, dict[str, None]] = {}
        """The paths of the open files, by folder."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Return the file at ``path``, opened if necessary. Raises FileNotFoundError unless ``create``."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        while len(self._files) >= self._open_max:
            self.forget(next(iter(self._files)))
        file = self.disk.open(path, create=create)
        self._files[path] = file
        self._of_folder.setdefault(posixpath.dirname(path), {})[path] = None
        return file

    def forget(self, path: str) -> None:
        """Close the file at ``path`` if it is open, because it is idle or will be renamed or removed."""
        file = self._files.pop(path, None)
        if file is None:
            return
        folder = posixpath.dirname(path)
        of_folder = self._of_folder[folder]
        del of_folder[path]
        if not of_folder:
            del self._of_folder[folder]
        file.close()

    def forget_folder(self, folder: str) -> None:
        """Close every open file of ``folder``."""
        for path in list(self._of_folder.get(folder, ())):
            self.forget(path)

    def close(self) -> None:
        while self._files:
            self.forget(next(reversed(self._files)))

    def __len__(self) -> int:
        return len(self._files)


_INDEX_FILES = (
    (names.INDEX_SUFFIX, OFFSET_ENTRY_SIZE),
    (names.TIME_INDEX_SUFFIX, TIME_ENTRY_SIZE),
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


WHOLE_BYTES_MAX = 64 << 10
"""The event loop reads an offset index of at most this size as a whole. A full one has forty times as much:
of that it reads the entries that a search looks at."""

_OFFSET_ENTRY = struct.Struct(">ii")


class NotCached(Exception):
    """The bytes are not in the page cache, and the reader may not wait for the disk."""


class _OffsetsInFile:
    """The first column of an offset index file, for a search. The zeros that Kafka preallocates are no
    entries, and belong behind all."""

    __slots__ = ("_read", "_size")

    def __init__(self, read: Callable[[int, int], bytes | None], size: int) -> None:
        self._read = read
        self._size = size

    def __len__(self) -> int:
        return self._size // OFFSET_ENTRY_SIZE

    def __getitem__(self, slot: int) -> int:
        relative, position = self.entry(slot)
        return relative if relative or position else RELATIVE_OFFSET_MAX + 1

    def entry(self, slot: int) -> tuple[int, int]:
        data = self._read(slot * OFFSET_ENTRY_SIZE, OFFSET_ENTRY_SIZE)
        if data is None:
            raise NotCached
        if len(data) < OFFSET_ENTRY_SIZE:
            raise CorruptIndex("the file ends within an entry")
        relative, position = _OFFSET_ENTRY.unpack(data)
        return relative, position


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
            start = max(file.size() - TIME_ENTRY_SIZE, 0)
            return TimeIndex.parse(self._base_offset, file.read_at(start, TIME_ENTRY_SIZE)).last_entry
        finally:
            file.close()

    def last_offset_entry(self) -> tuple[int, int] | None:
        """Read only the last offset index entry (offset, position), None if empty, on any thread.

        Raises as :meth:`check_exist`.
        """
        file = self._disk.open(self.path(names.INDEX_SUFFIX), writable=False)
        try:
            start = max(file.size() - OFFSET_ENTRY_SIZE, 0)
            found = OffsetIndex.parse(self._base_offset, file.read_at(start, OFFSET_ENTRY_SIZE))
            return (found.last_offset, found.last_position) if len(found) else None
        finally:
            file.close()

    def is_small(self) -> bool:
        """Whether the offset index, and so the time index, has few entries. Raises FileNotFoundError."""
        return self._pool.open(self.path(names.INDEX_SUFFIX)).size() <= WHOLE_BYTES_MAX

    def entry_if_cached(self, offset: int) -> tuple[int, int] | None:
        """Find what :meth:`OffsetIndex.lookup_entry` finds, without reading all, or a look at the order of
        the entries: the log must confirm it. Raises NotCached; others as :meth:`check_exist`."""
        file = self._pool.open(self.path(names.INDEX_SUFFIX))
        try:
            return self._find(file.read_at_if_cached, file.size(), offset)
        finally:
            self._pool.forget(file.path)

    def entry_apart(self, offset: int) -> tuple[int, int] | None:
        """The same, on any thread."""
        file = self._disk.open(self.path(names.INDEX_SUFFIX), writable=False)
        try:
            return self._find(file.read_at, file.size(), offset)
        finally:
            file.close()

    def _find(
        self, read: Callable[[int, int], bytes | None], size: int, offset: int
    ) -> tuple[int, int] | None:
        offsets = _OffsetsInFile(read, size)
        slot = bisect_right(offsets, offset - self._base_offset) - 1
        if slot < 0:
            return None
        relative, position = offsets.entry(slot)
        if relative < 0 or position < 0:
            raise CorruptIndex(f"entry {slot} is negative: relative offset {relative}, position {position}")
        return self._base_offset + relative, position

    def write_unwritten(self, indexes: SegmentIndexes) -> None:
        """Append the entries that are only in memory to the index files."""
        self.append(names.INDEX_SUFFIX, indexes.offsets.unwritten())
        self.append(names.TIME_INDEX_SUFFIX, indexes.times.unwritten())

    def cut_to(self, indexes: SegmentIndexes) -> None:
        """Truncate the files after the entries of ``indexes``, for example to remove preallocated zeros."""
        self.cut(names.INDEX_SUFFIX, len(indexes.offsets) * OFFSET_ENTRY_SIZE)
        self.cut(names.TIME_INDEX_SUFFIX, len(indexes.times) * TIME_ENTRY_SIZE)

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

    def aborted(self) -> PackedEntries:
        """Read the ``.txnindex`` file, on any thread; empty if there is none. Raises CorruptIndex."""
        path = self.path(names.TXN_INDEX_SUFFIX)
        data = self._disk.read_file(path) if self._disk.exists(path) else b""
        return PackedEntries(self._base_offset, data)

    @property
    def paths(self) -> list[str]:
        """The paths of all files that a segment may have, the log file first."""
        return [self.path(suffix) for suffix in names.SEGMENT_SUFFIXES]

    def rename_with_suffix(self, suffix: str) -> list[str]:
        """Append ``suffix`` to the names of all files; return the new paths."""
        renamed: list[str] = []
        for path in self.paths:
            if not self._disk.exists(path):
                continue
            self._pool.forget(path)
            self._disk.rename(path, path + suffix)
            renamed.append(path + suffix)
        return renamed

    def _parse(self, offsets: bytes, times: bytes) -> SegmentIndexes:
        return SegmentIndexes(
            OffsetIndex.parse(self._base_offset, offsets), TimeIndex.parse(self._base_offset, times)
        )
