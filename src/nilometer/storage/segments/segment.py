"""One segment of a log: ``.log``, ``.index``, ``.timeindex`` and perhaps ``.txnindex``.

A segment has the positions and timestamps of batches; leader epochs, producers and the high watermark are not
its concern. It appends complete batches that its callers have checked.

Invariants: ``size`` counts complete batches only, never bytes of a failed write; index entries have the
position of a batch's first byte and its last offset; only the active segment grows: its indexes are in
memory and are written to their files in parts, while those of a sealed segment are complete in their files.

The log file comes from the pool and is used at once; no segment keeps a file descriptor.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from typing_extensions import Buffer

from nilometer.runtime import File
from nilometer.storage import names
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.batch_scan import scan
from nilometer.storage.segments.indexes import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_SIZE,
    RELATIVE_OFFSET_MAX,
    TIME_ENTRY_SIZE,
    CorruptIndex,
    OffsetIndex,
    SegmentIndexes,
    TimeIndex,
)
from nilometer.storage.segments.segment_files import IndexFiles, NotCached, SegmentFiles
from nilometer.storage.segments.transaction_index import AbortedTxn, PackedEntries
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, BatchHeader, check_batch, read_header

# The largest timestamp of a segment, from its time index if that agrees with the log.
#
# Retention and searches by time use it, so a wrong entry would delete records too early, or hide them. The
# last entry of the time index is trusted if the batch with its offset has that timestamp, and if no batch in
# the tail of the segment (from the last entry of the offset index on) has a larger one. This is cheap if
# timestamps increase: both entries are within the last few kilobytes. It does not detect an outdated but
# undamaged index file of a segment whose timestamps decrease.
#
# Opens its own files and changes nothing: safe on any thread.


class Youngest(NamedTuple):
    """The largest timestamp of a segment, and an offset in the first batch that has it."""

    timestamp: int
    offset: int


def find_youngest(files: IndexFiles, log: File, base_offset: int, size: int) -> Youngest:
    """Return a sealed segment's largest timestamp; -1 and the base offset if no batch has a timestamp.

    ``log`` is the log file, ``size`` its bytes. If the time index is not trusted, every batch is read. Raises
    OSError if ``log`` cannot be read.
    """
    said = Youngest(NO_TIMESTAMP, base_offset)
    with suppress(CorruptIndex, FileNotFoundError):
        said = Youngest(*files.last_time_entry())
        tail = _youngest_of_tail(files, log, size)
        if tail is not None and said.timestamp >= tail.max_timestamp and names_batch(files, log, said, tail):
            return said
    return _look_at_all(log, said, base_offset, size)


def names_batch(files: IndexFiles, log: File, said: Youngest, tail: BatchHeader) -> bool:
    """Return whether the batch at the time index's last entry, ``said``, has that timestamp.

    ``tail`` is the batch with the largest timestamp in the segment's tail. Raises CorruptIndex,
    FileNotFoundError.
    """
    if said.timestamp < 0:
        return tail.max_timestamp < 0
    if _is_in(tail, said):
        return True
    entry = files.entry_apart(said.offset)
    with suppress(KafkaError):
        for batch in scan(log, 0 if entry is None else entry[1], log.size(), chunk_bytes=64 << 10):
            if batch.header.last_offset >= said.offset:
                return _is_in(batch.header, said)
    return False


def _is_in(batch: BatchHeader, said: Youngest) -> bool:
    return batch.max_timestamp == said.timestamp and batch.base_offset <= said.offset <= batch.last_offset


def _youngest_of_tail(files: IndexFiles, log: File, size: int) -> BatchHeader | None:
    """Return the batch with the largest timestamp from the last offset index entry on.

    None if that entry contradicts the log or the tail is damaged. Raises CorruptIndex.
    """
    last = files.last_offset_entry()
    start = end = 0 if last is None else last[1]
    youngest: BatchHeader | None = None
    try:
        for position, header, _, _ in scan(log, start, size):
            if last is not None and position == start and header.last_offset != last[0]:
                return None
            end = position + header.size
            if youngest is None or header.max_timestamp > youngest.max_timestamp:
                youngest = header
    except KafkaError:
        return None
    return youngest if end == size else None


def _look_at_all(log: File, said: Youngest, base_offset: int, size: int) -> Youngest:
    """Return the largest timestamp of all batches.

    Batches after damage cannot be read: then ``said``, the time index's last entry, is used if larger.
    """
    youngest, end = Youngest(NO_TIMESTAMP, base_offset), 0
    with suppress(KafkaError):
        for position, header, buffer, at in scan(log, 0, size):
            check_batch(buffer, at, header)
            end = position + header.size
            if header.max_timestamp > youngest.timestamp:
                youngest = Youngest(header.max_timestamp, header.last_offset)
    return youngest if end == size or said.timestamp <= youngest.timestamp else said


UNWRITTEN_ENTRIES_MAX = 512
"""How many index entries are kept in memory before they are written to the file."""


class BatchMark(msgspec.Struct, frozen=True, gc=False):
    """The data about an appended batch that the segment's indexes need. ``size`` is in bytes."""

    last_offset: int
    max_timestamp: int
    size: int


class LogSegment:
    __slots__ = (
        "_aborted",
        "_bytes_since_index_entry",
        "_files",
        "_index_files",
        "_indexes",
        "_max_timestamp",
        "_may_index_be_full",
        "_offset_of_max_timestamp",
        "base_offset",
        "created_ms",
        "first_timestamp",
        "has_unsynced_aborted",
        "index_interval_bytes",
        "jitter_ms",
        "log_path",
        "size",
    )

    def __init__(
        self,
        files: SegmentFiles,
        folder: str,
        base_offset: int,
        *,
        size: int,
        created_ms: int,
        index_interval_bytes: int,
        jitter_ms: int = 0,
    ) -> None:
        self._files = files
        self._index_files = IndexFiles(files.pool, folder, base_offset)
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self.index_interval_bytes = index_interval_bytes
        self.jitter_ms = jitter_ms
        self.log_path = self.path(names.LOG_SUFFIX)
        self.first_timestamp: int | None = None
        """Largest timestamp of the first batch, from which ``segment.ms`` counts; None if not read yet."""
        self._indexes: SegmentIndexes | None = None
        self._may_index_be_full = True
        self._bytes_since_index_entry = 0
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset
        self._aborted: PackedEntries | None = None
        self.has_unsynced_aborted = False
        """Whether the transaction index has changes that a power failure may lose."""

    @classmethod
    def create(
        cls,
        files: SegmentFiles,
        folder: str,
        base_offset: int,
        *,
        created_ms: int,
        index_interval_bytes: int,
        jitter_ms: int = 0,
    ) -> LogSegment:
        """Create an empty active segment. Existing files of the same names are emptied."""
        segment = cls(
            files,
            folder,
            base_offset,
            size=0,
            created_ms=created_ms,
            index_interval_bytes=index_interval_bytes,
            jitter_ms=jitter_ms,
        )
        segment.reset_indexes()
        with_log = files.pool.open(segment.log_path, create=True)
        if with_log.size():
            with_log.truncate(0)
        return segment

    def path(self, suffix: str) -> str:
        return self._index_files.path(suffix)

    def moved_to(self, folder: str, files: SegmentFiles) -> None:
        """Adopt ``folder`` as the new path of the partition's folder, which was renamed, and ``files``."""
        self._files.index_cache.forget(self.log_path)
        self._files = files
        self._index_files = IndexFiles(self._files.pool, folder, self.base_offset)
        self.log_path = self.path(names.LOG_SUFFIX)

    # -- appending

    def append(self, buffers: Sequence[Buffer], marks: Sequence[BatchMark]) -> int:
        """Write ``buffers``, the batches that ``marks`` describe; return the new size, which the caller sets.

        Readers on any thread use :attr:`size` as their limit, so the log sets it after its log end offset.
        After an OSError the caller must not write to the segment again.
        """
        position = self.size
        self._files.pool.open(self.log_path).append(buffers)
        indexes = self._indexes
        assert indexes is not None, "only an active segment is appended to"
        if position == 0 and self.first_timestamp is None:
            self.first_timestamp = marks[0].max_timestamp
        entries, since = len(indexes.offsets), self._bytes_since_index_entry
        newest = self.max_timestamp if self._max_timestamp is None else self._max_timestamp
        for mark in marks:
            if mark.max_timestamp > newest:
                newest = self._max_timestamp = mark.max_timestamp
                self._offset_of_max_timestamp = mark.last_offset
            largest = newest, self._offset_of_max_timestamp
            since = indexes.add(
                position, mark.last_offset, mark.size, largest, since, self.index_interval_bytes
            )
            position += mark.size
        self._bytes_since_index_entry = since
        if len(indexes.offsets) != entries:
            self._may_index_be_full = True
            if indexes.offsets.unwritten_count >= UNWRITTEN_ENTRIES_MAX:
                self.write_indexes()
        return position

    def append_aborted(self, entries: Sequence[AbortedTxn]) -> None:
        self.has_unsynced_aborted = True
        encoded = b"".join(entry.encode() for entry in entries)
        self._index_files.append(names.TXN_INDEX_SUFFIX, encoded)
        if self._aborted is not None:
            self._aborted.extend(encoded)

    def can_hold(self, offset: int) -> bool:
        return 0 <= offset - self.base_offset <= RELATIVE_OFFSET_MAX

    def is_index_full(self, index_bytes_max: int) -> bool:
        indexes = self._indexes
        if indexes is None or not self._may_index_be_full:
            return False
        self._may_index_be_full = (  # until the next entry
            len(indexes.offsets) >= index_bytes_max // OFFSET_ENTRY_SIZE
            or len(indexes.times) >= index_bytes_max // TIME_ENTRY_SIZE - 1
        )
        return self._may_index_be_full

    # -- ages

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any batch; -1 if there is none."""
        if self._max_timestamp is None:
            self._max_timestamp, self._offset_of_max_timestamp = self._find_youngest()
        return self._max_timestamp

    @property
    def known_max_timestamp(self) -> int | None:
        """:attr:`max_timestamp`, without reading a file; None if it was not read yet."""
        return self._max_timestamp

    def modified_ms(self) -> int:
        """Return when the log file was last written, in ms since the epoch. Raises OSError.

        Safe on any thread.
        """
        return self._files.disk.modified_ms(self.log_path)

    @property
    def offset_of_max_timestamp(self) -> int:
        """The last offset of the first batch that has :attr:`max_timestamp`."""
        _ = self.max_timestamp
        return self._offset_of_max_timestamp

    def largest_timestamp(self) -> int:
        """Return the time (ms) that retention uses: :attr:`max_timestamp`, or else when the file changed."""
        newest = self.max_timestamp
        return newest if newest >= 0 else self.modified_ms()

    def _find_youngest(self) -> Youngest:
        file = self._files.disk.open(self.log_path, writable=False)
        try:
            return find_youngest(self._index_files, file, self.base_offset, self.size)
        finally:
            file.close()

    def first_batch_timestamp(self) -> int | None:
        """Return :attr:`first_timestamp`, read from the file if necessary; None if no batch can be read.

        Safe on any thread.
        """
        if self.first_timestamp is None and self.size:
            file = self._files.disk.open(self.log_path, writable=False)
            try:
                self.first_timestamp = read_header(file.read_at(0, HEADER_BYTES)).max_timestamp
            except KafkaError:
                return None  # damage: a fetch from the segment reports it
            finally:
                file.close()
        return self.first_timestamp

    def waited_ms(self, wall_ms: int, timestamp: int) -> int:
        """Return how many ms the segment has been open when a batch with ``timestamp`` is appended.

        Counted by record timestamps if the first batch has one, else by the wall clock, as Kafka does.
        """
        if self.first_timestamp is None and self.size:
            first = next(scan(self._files.pool.open(self.log_path), 0, self.size, chunk_bytes=4096), None)
            self.first_timestamp = first.header.max_timestamp if first else NO_TIMESTAMP
        first_timestamp = self.first_timestamp
        if first_timestamp is not None and first_timestamp >= 0:
            return timestamp - first_timestamp
        return wall_ms - self.created_ms

    # -- indexes

    def indexes(self) -> SegmentIndexes:
        """Return the indexes, from memory or their files.

        Only for the thread of the log's owner. Raises CorruptIndex, FileNotFoundError.
        """
        found = self._load(only_cached=False)
        assert found is not None, "a read that may wait always returns the indexes"
        return found

    def _load(self, *, only_cached: bool) -> SegmentIndexes | None:
        """Return the indexes; None if ``only_cached`` and a read would block."""
        found = self._indexes or self._files.index_cache.get(self.log_path)
        if found is not None:
            return found
        found = self._index_files.load(only_cached=only_cached)
        if found is not None:
            self._files.index_cache.put(self.log_path, self._checked(found))
        return found

    def entry_if_cached(self, offset: int) -> tuple[int, int] | None:
        """Return the offset index's last entry not above ``offset``, or None, if that needs no wait for the
        disk. The log must confirm it.

        Only for the thread of the log's owner. Raises NotCached, CorruptIndex, FileNotFoundError.
        """
        found = self._indexes or self._files.index_cache.get(self.log_path)
        if found is None:
            if not self._index_files.is_small():
                return self._index_files.entry_if_cached(offset)
            found = self._load(only_cached=True)
            if found is None:
                raise NotCached
        return found.offsets.lookup_entry(offset)

    def entry_apart(self, offset: int) -> tuple[int, int] | None:
        """The same as :meth:`entry_if_cached`, on any thread; it may wait."""
        found = self._indexes
        return self._index_files.entry_apart(offset) if found is None else found.offsets.lookup_entry(offset)

    def indexes_apart(self) -> SegmentIndexes:
        """Return the indexes without using pool or cache: safe on any thread. Raises as :meth:`indexes`."""
        return self._indexes or self._checked(self._index_files.load_apart())

    def _checked(self, found: SegmentIndexes) -> SegmentIndexes:
        if len(found.offsets) and found.offsets.last_position >= self.size:
            raise CorruptIndex(f"{self.log_path} has {self.size} bytes, but its index points beyond them")
        return found

    def reset_indexes(self, *, keep_aborted: bool = False) -> None:
        """Make the indexes and their files empty; the segment is active afterwards.

        ``keep_aborted`` keeps the transaction index.
        """
        self._indexes = SegmentIndexes(OffsetIndex(self.base_offset), TimeIndex(self.base_offset))
        self._files.index_cache.forget(self.log_path)
        self._bytes_since_index_entry = 0
        self._max_timestamp, self._offset_of_max_timestamp = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = None
        self._aborted = None
        self._index_files.empty()
        if not keep_aborted and self._files.disk.exists(self.path(names.TXN_INDEX_SUFFIX)):
            self._index_files.cut(names.TXN_INDEX_SUFFIX, 0)
            self.has_unsynced_aborted = True

    def rebuild_indexes(self) -> None:
        """Rebuild the indexes from the batches, up to the first damage, which a fetch will report.

        The segment is active afterwards.
        """
        self.reset_indexes(keep_aborted=True)
        with suppress(KafkaError):
            for position, header, _, _ in scan(self.open_log(), 0, self.size):
                self.index_batch(position, BatchMark(header.last_offset, header.max_timestamp, header.size))

    def index_batch(self, position: int, mark: BatchMark) -> None:
        """Add a batch that is already in the file at ``position`` to the indexes."""
        indexes = self._indexes
        assert indexes is not None, "only an active segment is indexed"
        if mark.max_timestamp > self.max_timestamp:
            self._max_timestamp, self._offset_of_max_timestamp = mark.max_timestamp, mark.last_offset
        largest = self.max_timestamp, self._offset_of_max_timestamp
        since, interval = self._bytes_since_index_entry, self.index_interval_bytes
        self._bytes_since_index_entry = indexes.add(
            position, mark.last_offset, mark.size, largest, since, interval
        )

    def check_files_exist(self) -> None:
        """Check that the index files exist and have whole entries. Raises FileNotFoundError, CorruptIndex."""
        self._index_files.check_exist()

    def position_near(self, offset: int) -> int:
        """Return a byte position at or before the batch with ``offset``; 0 if the index is unusable."""
        try:
            indexes = self.indexes()
        except (CorruptIndex, FileNotFoundError):
            return 0
        entry = indexes.offsets.lookup_entry(offset - 1)
        return entry[1] if entry is not None and self._is_true(*entry) else 0

    def _is_true(self, last_offset: int, position: int) -> bool:
        """Whether an index entry is right: the batch at ``position`` has the last offset ``last_offset``."""
        try:
            return read_header(self.open_log().read_at(position, HEADER_BYTES)).last_offset == last_offset
        except KafkaError:
            return False

    def activate(self, *, verify: bool = False) -> tuple[int, bool]:
        """Make a loaded segment the active one, ready for appends.

        Returns the offset after its last complete batch, and whether the file ends there. Reads only the
        batches from the last index entry on; with ``verify`` their CRCs are checked, too. Raises
        CorruptIndex, KafkaError.
        """
        found = self.indexes()
        self._files.index_cache.forget(self.log_path)
        self._indexes = found
        self._index_files.cut_to(found)
        said = Youngest(*found.times.last_entry)
        youngest: BatchHeader | None = None
        next_offset = self.base_offset
        start = end = found.offsets.last_position
        if len(found.offsets) and not self._is_true(found.offsets.last_offset, start):
            raise CorruptIndex(f"the last entry of the index of {self.log_path} does not match it")
        for batch in scan(self.open_log(), start, self.size):
            header = batch.header
            if verify:
                check_batch(batch.buffer, batch.at, header)
            next_offset, end = header.next_offset, batch.position + header.size
            if youngest is None or header.max_timestamp > youngest.max_timestamp:
                youngest = header
        self._take_age(said, youngest)
        self._bytes_since_index_entry = self.size - start
        return next_offset, end == self.size

    def _take_age(self, said: Youngest, tail: BatchHeader | None) -> None:
        """Set the segment's largest timestamp.

        ``said`` is the time index's last entry; ``tail`` the batch with the largest timestamp after the last
        offset index entry. Raises CorruptIndex if no batch has the timestamp of ``said``.
        """
        if said.timestamp >= 0 and (
            tail is None or not names_batch(self._index_files, self.open_log(), said, tail)
        ):
            raise CorruptIndex(f"the last entry of the time index of {self.log_path} does not match it")
        if tail is not None and tail.max_timestamp > said.timestamp:
            said = Youngest(tail.max_timestamp, tail.last_offset)
        self._max_timestamp, self._offset_of_max_timestamp = said

    def write_indexes(self) -> None:
        """Append the entries that are only in memory to the index files."""
        if self._indexes is not None:
            self._index_files.write_unwritten(self._indexes)

    def complete_indexes(self) -> None:
        """Add the largest timestamp as the time index's last entry, and write all entries to the files.

        For a roll, a close or a flush.
        """
        if self._indexes is not None:
            self._indexes.times.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self.write_indexes()

    def seal(self) -> None:
        """Complete the index files; the segment is no longer active, and its indexes go to the cache."""
        self.complete_indexes()
        if self._indexes is not None:
            self._files.index_cache.put(self.log_path, self._indexes)
            self._indexes = None

    # -- files

    def open_log(self) -> File:
        """Return the log file from the pool. Use it at once: the pool may close it later."""
        return self._files.pool.open(self.log_path)

    def aborted(self) -> PackedEntries:
        """Return the segment's aborted transactions. Raises CorruptIndex."""
        if self._aborted is None:
            self._aborted = self._index_files.aborted()
        return self._aborted

    def aborted_apart(self) -> Sequence[AbortedTxn]:
        """Return a sealed segment's aborted transactions, on any thread. Raises CorruptIndex."""
        return self._index_files.aborted()

    def truncate_to(self, offset: int, position: int) -> None:
        """Remove the bytes from ``position`` on, which is that of the first batch at or above ``offset``.

        The segment is active afterwards. Unusable indexes are rebuilt.
        """
        kept = transaction_index.count_below(self.aborted(), offset)
        if kept < len(self.aborted()):
            self._index_files.cut(names.TXN_INDEX_SUFFIX, kept * transaction_index.ENTRY_SIZE)
            self.has_unsynced_aborted = True
            self._aborted = None
        try:
            found = self.indexes()
        except (CorruptIndex, FileNotFoundError):
            found = None
        self._files.index_cache.forget(self.log_path)
        self.open_log().truncate(position)
        self.size = position
        if position == 0:
            self.first_timestamp = None
        if found is None or not self._take_over(found, offset):
            self.rebuild_indexes()
            self.write_indexes()

    def _take_over(self, found: SegmentIndexes, offset: int) -> bool:
        """Use the entries of ``found`` below ``offset`` as the indexes; return whether they match the log."""
        found.offsets.truncate_to(offset)
        found.times.truncate_to(offset)
        found.offsets.forget_written()
        found.times.forget_written()
        self._indexes = found
        self._index_files.empty()
        self.write_indexes()
        try:
            self.activate()
        except (CorruptIndex, KafkaError):
            return False
        return True

    @property
    def paths(self) -> list[str]:
        """The paths of all files that a segment may have."""
        return self._index_files.paths

    def mark_deleted(self, suffix: str = names.DELETED_SUFFIX) -> list[str]:
        """Append ``suffix`` to the names of all files; return the new names, to be removed later."""
        self._files.index_cache.forget(self.log_path)
        return self._index_files.rename_with_suffix(suffix)


# The segments of a log, ordered by base offset.
#
# The segments are one tuple that is replaced as a whole on every change, so a reader on any thread that takes
# the tuple once sees a consistent state.


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


class LogSegments:
    __slots__ = ("_segments",)

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments: tuple[LogSegment, ...] = tuple(sorted(segments, key=_base_offset))

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        """The last segment, the only one that is appended to."""
        return self._segments[-1]

    def newest(self, count: int) -> tuple[LogSegment, ...]:
        """Return the last ``count`` segments, or all."""
        return self._segments[-count:]

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment with the largest base offset not above ``offset``, or None."""
        segments = self._segments
        slot = bisect_right(segments, offset, key=_base_offset) - 1
        return segments[slot] if slot >= 0 else None

    def higher(self, base_offset: int) -> LogSegment | None:
        """Return the segment after the one at ``base_offset``, or None."""
        segments = self._segments
        slot = bisect_right(segments, base_offset, key=_base_offset)
        return segments[slot] if slot < len(segments) else None

    def from_offset(self, offset: int) -> tuple[LogSegment, ...]:
        """Return the segments that may contain ``offset`` or higher offsets."""
        segments = self._segments
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]

    def add(self, segment: LogSegment) -> None:
        segments = self._segments
        slot = bisect_left(segments, segment.base_offset, key=_base_offset)
        self._segments = (*segments[:slot], segment, *segments[slot:])

    def remove_oldest(self, count: int) -> None:
        self._segments = self._segments[count:]

    def remove(self, gone: Iterable[LogSegment]) -> None:
        bases = {segment.base_offset for segment in gone}
        self._segments = tuple(segment for segment in self._segments if segment.base_offset not in bases)

    def replace(self, gone: Iterable[LogSegment], segment: LogSegment) -> None:
        """Replace the adjacent segments ``gone`` by ``segment``, which has the first one's base offset."""
        bases = {one.base_offset for one in gone}
        kept = (one for one in self._segments if one.base_offset not in bases)
        self._segments = tuple(sorted((*kept, segment), key=_base_offset))

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._segments)
