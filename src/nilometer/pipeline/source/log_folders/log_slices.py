"""Divides a replica's log into slices, one per task: offset ranges cut at batches of the offset indexes.

Uses the segments' sizes and indexes. A slice contains offsets only, no positions in files, since files may be
compacted, rolled or deleted before a task reads them.

Invariants: slices do not overlap, and together they are the requested range, except segments that are too old
for ``since_ms``; a slice has about ``bytes_per_slice`` bytes, and at least one batch.
"""

from __future__ import annotations

import posixpath
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.decode.batch_table import CONTROL, TRANSACTIONAL, BatchTable, walk
from nilometer.pipeline.errors import DataLoss, SourceError
from nilometer.pipeline.source.log_folders.places import ReplicaFolder, bases_among, open_place, shown
from nilometer.pipeline.source.log_folders.tiers import TieredFolder, is_tiered
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.names import TopicPartition
from nilometer.storage.producers import CorruptSnapshot, decode_snapshot
from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.indexes import TIME_ENTRY_SIZE as TIME_ENTRY_BYTES
from nilometer.storage.segments.indexes import CorruptIndex, OffsetIndex, TimeIndex
from nilometer.tier.format import RemoteSegment
from nilometer.wire.errors import KafkaError
from nilometer.wire.record_batch import HEADER_BYTES, read_header
from nilometer.wire.records import ControlType, read_end_txn_marker

if TYPE_CHECKING:
    import numpy

    from nilometer.runtime import Disk, File


# Reads the batches of an offset range from a partition's folder in large pieces.
#
# Finds segments by their names at the time of reading, so that an earlier plan stays valid when a segment has
# grown, was compacted into another one, or was deleted by retention. Missing records raise DataLoss, corrupt
# files SourceError, with the folder or file.
#
# Invariant: the batches are returned in order, from at or before the first offset, and no offset is skipped
# silently except those that the log does not contain. Where segments of an archive overlap, batches come
# again: the decoder takes each offset once.

CHUNK_BYTES = 8 * 1024 * 1024
"""The size of one read; with small records about one Arrow batch."""
REPLACEMENT_WAIT_S = 10.0
"""How long the log cleaner may take to replace segments by a compacted one."""


class SliceReader:
    """Reads one partition's folder. ``path`` and ``position`` are file and position of the last table."""

    def __init__(
        self,
        place: str,
        *,
        segments_in_tier: Sequence[RemoteSegment] = (),
        tier: str | None = None,
        fail_on_data_loss: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """``segments_in_tier``: of a place in remote storage, what was planned. ``tier``: where the records
        are that are deleted in this place."""
        self._place = place
        self._tier = tier
        self._disk, self._folder = open_place(place, segments_in_tier)
        self._fail_on_data_loss = fail_on_data_loss
        self._chunk_bytes = chunk_bytes
        self.path = place
        self.position = 0

    def tables(self, start: int, end: int) -> Iterator[BatchTable]:
        """Yield tables of the complete batches with offsets in [start, end), perhaps also some before.

        Raises DataLoss, SourceError.
        """
        next_offset, missing = start, -1
        while next_offset < end:
            bases = self._bases()
            slot = bisect_right(bases, next_offset) - 1
            if slot < 0:
                low, next_offset = next_offset, min(bases[0], end) if bases else end
                yield from self._in_tier(low, next_offset)
                continue
            segment_end = self._end_in_tier(bases[slot])
            if segment_end is not None and segment_end <= next_offset:
                next_offset = self._lost(next_offset, min([*bases[slot + 1 : slot + 2], end]))
                continue
            try:
                with closing(self._open(bases[slot])) as file:
                    for table in self._segment(file, bases[slot], next_offset, end):
                        next_offset = max(next_offset, int(table.next_offsets[-1]))
                        yield table
            except FileNotFoundError:
                if missing == bases[slot]:
                    next_offset = self._missing(missing, next_offset, end)
                    continue
                missing = bases[slot]  # removed since it was listed, or opened: look again
                if is_tiered(self._place):
                    self._disk, self._folder = open_place(self._place)  # by the manifest of now
                continue
            if next_offset < end:
                following = segment_end or self._base_above(bases[slot])
                if following is None:
                    self._lost(next_offset, end)
                    return
                next_offset = max(next_offset, following)

    def _in_tier(self, start: int, end: int) -> Iterator[BatchTable]:
        """Yield what remote storage has, since the folder begins after it."""
        if self._tier is not None:
            reader = SliceReader(self._tier, fail_on_data_loss=self._fail_on_data_loss)
            if reader._bases():
                for table in reader.tables(start, end):
                    self.path, self.position = reader.path, reader.position
                    yield table
                return
        self._lost(start, end)

    def _missing(self, base_offset: int, start: int, end: int) -> int:
        path = self._path(base_offset, names.LOG_SUFFIX)
        segment_end = self._end_in_tier(base_offset)
        if segment_end is None:
            raise SourceError(f"{path} is listed but does not exist: run the query again")
        if self._fail_on_data_loss:
            raise DataLoss(
                f"offsets {start} to {min(segment_end, end) - 1} of {shown(self._place)}, are lost: its last "
                f"manifest names {base_offset}, whose object does not exist"
            )
        return segment_end

    def _end_in_tier(self, base_offset: int) -> int | None:
        return self._disk.ends.get(base_offset) if isinstance(self._disk, TieredFolder) else None

    def _bases(self) -> list[int]:
        """Return the segments' base offsets; first wait for a replacement by a compacted segment to end.

        Raises SourceError if the replacement does not end.
        """
        deadline = time.monotonic() + REPLACEMENT_WAIT_S
        while True:
            listing = self._listing()
            swaps = [name for name in listing if name.endswith(names.LOG_SUFFIX + names.SWAP_SUFFIX)]
            if not swaps:
                return bases_among(listing)
            if time.monotonic() > deadline:
                raise SourceError(
                    f"{shown(self._place)} has an unfinished compaction ({swaps[0]}): "
                    "start its broker, which completes it"
                )
            time.sleep(0.05)

    def _listing(self) -> list[str]:
        try:
            return self._disk.list_directory(self._folder)
        except FileNotFoundError:
            if self._fail_on_data_loss:
                raise DataLoss(f"{shown(self._place)} does not exist any more") from None
            return []

    def _base_above(self, base_offset: int) -> int | None:
        return next((base for base in self._bases() if base > base_offset), None)

    def _open(self, base_offset: int) -> File:
        return self._disk.open(self._path(base_offset, names.LOG_SUFFIX), writable=False)

    def _path(self, base_offset: int, suffix: str) -> str:
        return posixpath.join(self._folder, names.offset_name(base_offset, suffix))

    def _segment(self, file: File, base_offset: int, start: int, end: int) -> Iterator[BatchTable]:
        position = position_near(self._disk, self._folder, file, base_offset, start)
        wanted = self._chunk_bytes
        while True:
            buffer = file.read_at(position, wanted)
            at = 0
            while True:
                table = walk(buffer, at)
                at = table.end
                if len(table):
                    self.path, self.position = file.path, position
                    yield table
                    if table.next_offsets[-1] >= end:
                        return
                if not table.is_header:
                    self._refuse(file.path, position + at, buffer, at)
                if len(table) == 0:
                    break
            if len(buffer) < wanted:
                if at < len(buffer) and is_tiered(self._place):
                    raise SourceError(f"{file.path} is damaged at byte {position + at}: it ends in a batch")
                return  # the end of the file, perhaps with a batch that is being written
            position += at
            wanted = self._chunk_bytes if at else max(self._chunk_bytes, _batch_size(buffer))

    def _refuse(self, path: str, position: int, buffer: bytes, at: int) -> None:
        try:
            read_header(buffer, at)
        except KafkaError as error:
            raise SourceError(f"{path} is damaged at byte {position}: {error.message}") from error

    def _lost(self, start: int, end: int) -> int:
        bases = bases_among(self._listing())
        begins = f"its log starts at {bases[0]}" if bases and bases[0] > start else "its log ends before that"
        if is_tiered(self._place):
            begins = "no segment of its last manifest has them"
        if self._fail_on_data_loss:
            where = shown(self._place)
            raise DataLoss(f"offsets {start} to {end - 1} of {where} are no longer available: {begins}")
        return end


def reader_of(replica: ReplicaFolder, *, fail_on_data_loss: bool = False) -> SliceReader:
    return SliceReader(
        replica.place,
        segments_in_tier=replica.segments_in_tier,
        tier=replica.tier,
        fail_on_data_loss=fail_on_data_loss,
    )


def position_near(disk: Disk, folder: str, file: File, base_offset: int, offset: int) -> int:
    """Return the position of a batch at or before ``offset``: by the index if it is correct, else 0."""
    entry = index_of(disk, folder, base_offset).lookup_entry(offset - 1) if offset > base_offset else None
    if entry is None:
        return 0
    last_offset, position = entry
    found = base_offset_at(file, position)
    return position if found is not None and base_offset <= found <= last_offset else 0


def index_of(disk: Disk, folder: str, base_offset: int) -> OffsetIndex:
    """Return a segment's offset index; an empty one if it is missing or corrupt."""
    try:
        data = disk.read_file(posixpath.join(folder, names.offset_name(base_offset, names.INDEX_SUFFIX)))
        whole = data[: len(data) - len(data) % 8]  # the last entry may be incomplete
        return OffsetIndex.parse(base_offset, whole)
    except (FileNotFoundError, CorruptIndex):
        return OffsetIndex(base_offset)


def base_offset_at(file: File, position: int) -> int | None:
    """Return the base offset of the batch at ``position``; None if no batch begins there."""
    try:
        return read_header(file.read_at(position, HEADER_BYTES)).base_offset
    except KafkaError:
        return None


def _batch_size(buffer: bytes) -> int:
    return read_header(buffer).size if len(buffer) >= HEADER_BYTES else HEADER_BYTES


# A partition's log as it can be read: one or several parts, of an archive and of a replica's folder.
#
# Invariants: parts do not overlap and are in the order of offsets; between two parts offsets may be missing.


@dataclass(frozen=True, slots=True)
class LogPart:
    """The offsets [start, end) in one folder, and the base offsets of its segments."""

    replica: ReplicaFolder
    bases: tuple[int, ...]
    start: int
    end: int

    @property
    def place(self) -> str:
        return self.replica.place


@dataclass(frozen=True, slots=True)
class ReadableLog:
    """The parts of one partition up to its high watermark; at least one, which may be empty."""

    parts: tuple[LogPart, ...]
    stable_end: int | None = None
    """The last stable offset, for a reader of committed records: nothing is read from there on."""

    @property
    def part(self) -> TopicPartition:
        return self.parts[0].replica.part

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        end = self.parts[-1].end
        return end if self.stable_end is None else max(min(end, self.stable_end), self.start)

    def within(self, start: int, end: int) -> Iterator[tuple[LogPart, int, int]]:
        """Yield each part that has some of [start, end), with the range in it."""
        for part in self.parts:
            low, high = max(start, part.start), min(end, part.end)
            if low < high:
                yield part, low, high

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of [start, end) that lie between two parts."""
        between = [(before.end, here.start) for before, here in pairwise(self.parts)]
        clipped = [(max(low, start), min(high, end)) for low, high in between]
        return [(low, high) for low, high in clipped if low < high]

    def behind_gaps(self) -> tuple[LogPart, ...]:
        """Return the last parts between which nothing is missing."""
        gaps = [
            slot for slot, (before, here) in enumerate(pairwise(self.parts), 1) if before.end < here.start
        ]
        return self.parts[gaps[-1] :] if gaps else self.parts

    def parts_before_gaps(self) -> list[LogPart]:
        return [before for before, here in pairwise(self.parts) if before.end < here.start]


# Finds a partition's aborted transactions and its last stable offset, for read_committed.
#
# Aborted transactions are read from the transaction index of each segment, or from the control batches of the
# log if there are no indexes, as in a copy of only ``.log`` files. Open transactions are found by reading the
# log from the newest producer snapshot on.
#
# Invariants: below the last stable offset every transaction is committed or aborted. Segments that are
# deleted meanwhile are skipped here: reading the slices reports what is missing.


@dataclass(frozen=True, slots=True, order=True)
class Aborted:
    """An aborted transaction, from its first record to its abort marker at ``last_offset``."""

    first_offset: int
    last_offset: int
    producer_id: int

    def overlaps(self, start: int, end: int) -> bool:
        return self.first_offset < end and self.last_offset >= start


class CommittedRows:
    """A function to call with each table: returns, per batch, whether its records are not aborted."""

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._aborted = sorted(aborted)

    def __call__(self, table: BatchTable) -> numpy.ndarray[Any, Any]:
        import numpy as np

        from nilometer.pipeline.decode import batch_kernels as fields

        bases, producers = table.column(fields.BASE_OFFSET), table.column(fields.PRODUCER_ID)
        transactional = table.column(fields.ATTRIBUTES) & TRANSACTIONAL != 0
        dropped = np.zeros(len(table), np.bool_)
        if transactional.any():
            for one in self._aborted:
                if one.overlaps(int(bases[0]), int(bases[-1]) + 1):
                    dropped |= (
                        (producers == one.producer_id)
                        & (bases >= one.first_offset)
                        & (bases <= one.last_offset)
                    )
        return ~(dropped & transactional)


class OpenTransactions:
    """Follows the batches of a log in order; collects open and aborted transactions."""

    def __init__(self, open_since: dict[int, int] | None = None) -> None:
        self.open_since = dict(open_since or {})
        """Producer id to the offset of the first record of its open transaction."""
        self.aborted: list[Aborted] = []

    def follow(self, table: BatchTable, start: int, end: int) -> None:
        """Take the batches of ``table`` that begin in [start, end)."""
        from nilometer.pipeline.decode import batch_kernels as fields

        rows = table.rows
        bases, attributes = rows[:, fields.BASE_OFFSET], rows[:, fields.ATTRIBUTES]
        wanted = (bases >= start) & (bases < end) & (attributes & TRANSACTIONAL != 0)
        for row in rows[wanted]:
            producer_id, base_offset = int(row[fields.PRODUCER_ID]), int(row[fields.BASE_OFFSET])
            if row[fields.ATTRIBUTES] & CONTROL:
                self._end(table.buffer, int(row[fields.POSITION]), producer_id, base_offset)
            else:
                self.open_since.setdefault(producer_id, base_offset)

    def _end(self, buffer: bytes | memoryview, position: int, producer_id: int, offset: int) -> None:
        marker = read_end_txn_marker(buffer, position, read_header(buffer, position))
        first_offset = self.open_since.pop(producer_id, None)
        if marker is not None and marker.control_type is ControlType.ABORT and first_offset is not None:
            self.aborted.append(Aborted(first_offset, offset, producer_id))

    def last_stable_offset(self, end: int) -> int:
        return min([end, *self.open_since.values()])


def last_stable_offset(parts: Sequence[LogPart]) -> int:
    """Return the last stable offset: below it every transaction is committed or aborted.

    ``parts`` are those of a log without a gap, up to its high watermark; the result is at most their end.
    """
    return _state_at_end(parts).last_stable_offset(parts[-1].end)


def cut_off(part: LogPart) -> list[Aborted]:
    """Return the transactions that are open at the end of ``part``, as if they had been aborted there.

    For a part that a gap follows: their markers may be lost with it.
    """
    state = _state_at_end([part])
    return [Aborted(first, part.end - 1, producer) for producer, first in state.open_since.items()]


def _state_at_end(parts: Sequence[LogPart]) -> OpenTransactions:
    """Follow the log from the newest producer snapshot on; without one, from its beginning."""
    number, start, state = 0, parts[0].start, OpenTransactions()
    for candidate in reversed(range(len(parts))):
        found = _newest_snapshot(parts[candidate])
        if found is not None:
            number, start, state = candidate, found[0], OpenTransactions(found[1])
            break
    for part in parts[number:]:
        low = max(start, part.start)
        for table in reader_of(part.replica).tables(low, part.end):
            state.follow(table, low, part.end)
    return state


def find_aborted(parts: Sequence[LogPart], start: int, end: int) -> list[Aborted]:
    """Return the aborted transactions that overlap [start, end); ``end`` is at most the last stable offset.

    ``parts`` are those of one log, up to its high watermark. Raises SourceError for a corrupt transaction
    index.
    """
    if start >= end:
        return []
    if any(not _has_indexes(part) for part in parts):
        return [one for one in _aborted_in_batches(parts) if one.overlaps(start, end)]
    found: set[Aborted] = set()
    for part in parts:
        entries, is_done = _indexed(part, start, end)
        found.update(Aborted(one.first_offset, one.last_offset, one.producer_id) for one in entries)
        if is_done:
            break
    return sorted(found)


def _has_indexes(part: LogPart) -> bool:
    """Raises FileNotFoundError as ``_indexed``."""
    disk, folder = part.replica.open()
    for base in _reaching(part.bases, part.start):
        if not disk.exists(_path(folder, base, names.INDEX_SUFFIX)):
            _require_segment(part, disk, folder, base)
            return False
    return True


def _reaching(bases: Sequence[int], offset: int) -> Sequence[int]:
    """Return the base offsets of the segments that reach beyond ``offset``."""
    return bases[max(bisect_right(bases, offset) - 1, 0) :]


def _require_segment(part: LogPart, disk: Disk, folder: str, base: int) -> None:
    """Raise FileNotFoundError if a segment has left the disk, and is in remote storage."""
    if part.replica.tier is not None:
        disk.file_size(_path(folder, base, names.LOG_SUFFIX))  # its name is the first that goes


def _aborted_in_batches(parts: Sequence[LogPart]) -> list[Aborted]:
    """Find the aborted transactions by their markers, which may be above the last stable offset."""
    state = OpenTransactions()
    for number, part in enumerate(parts):
        low = part.start if number or not part.bases else part.bases[0]
        for table in reader_of(part.replica).tables(low, part.end):
            state.follow(table, low, part.end)
    return state.aborted


def _indexed(part: LogPart, start: int, end: int) -> tuple[list[transaction_index.AbortedTxn], bool]:
    """Return what the indexes of a part have about [start, end), and whether no later part has more.

    Raises FileNotFoundError if a segment has left the part meanwhile, and is in remote storage.
    """
    disk, folder = part.replica.open()
    found: list[transaction_index.AbortedTxn] = []
    for base in _reaching(part.bases, max(start, part.start)):
        path = _path(folder, base, names.TXN_INDEX_SUFFIX)
        if not disk.exists(path):  # nothing was aborted in this segment, or it is only in remote storage now
            _require_segment(part, disk, folder, base)
            continue
        try:
            entries = transaction_index.PackedEntries(base, disk.read_file(path))
        except FileNotFoundError:
            if part.replica.tier is not None or part.replica.segments_in_tier:
                raise  # so the read is planned again
            continue
        except CorruptIndex as error:
            raise SourceError(f"{path} is damaged: {error}") from error
        overlapping, is_done = entries.collect(start, end)
        found += overlapping
        if is_done:
            return found, True
    return found, False


def _newest_snapshot(part: LogPart) -> tuple[int, dict[int, int]] | None:
    """Return the offset of the newest usable producer snapshot of a part, and the transactions open there.

    The transactions are a mapping from producer id to first offset.
    """
    disk, folder = part.replica.open()
    parsed = (names.parse_offset_name(name) for name in disk.list_directory(folder))
    offsets = sorted(found[0] for found in parsed if found and found[1] == names.SNAPSHOT_SUFFIX)
    for offset in reversed(offsets):
        if not part.start <= offset <= part.end:
            continue
        try:
            entries = decode_snapshot(disk.read_file(_path(folder, offset, names.SNAPSHOT_SUFFIX)))
        except CorruptSnapshot:
            continue
        except FileNotFoundError:
            if part.replica.segments_in_tier:
                raise  # so the read is planned again
            continue
        return offset, {
            one.producer_id: one.current_txn_first_offset
            for one in entries
            if one.current_txn_first_offset >= 0
        }
    return None


def _path(folder: str, offset: int, suffix: str) -> str:
    return posixpath.join(folder, names.offset_name(offset, suffix))


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The range of one partition's offsets, [start, end), that one task reads."""

    place: str
    topic: str
    partition: int
    start: int
    end: int
    bytes: int
    """The approximate size in bytes; 0 if unknown."""
    aborted: tuple[Aborted, ...] = ()
    """Aborted transactions, whose records are left out."""
    segments_in_tier: tuple[RemoteSegment, ...] = ()
    """Of a place in remote storage: the segments of the range, by their manifest when this was planned. Their
    objects stay for a while when they have left the manifest."""
    tier: str | None = None
    """The place in remote storage of what the folder no longer has."""


@dataclass(frozen=True, slots=True)
class _SegmentRange:
    """The part of one segment that is read."""

    base_offset: int
    start: int
    end: int
    bytes: int


def plan_slices(
    replica: ReplicaFolder,
    start: int,
    end: int,
    *,
    bytes_per_slice: int,
    since_ms: int | None = None,
    records_max: int | None = None,
) -> list[LogSlice]:
    """Divide [start, end) of a replica into slices.

    ``since_ms`` leaves out segments whose records are all older than this timestamp; ``records_max`` limits
    the number of offsets in a slice.
    """
    disk, folder = replica.open()
    segment_ranges = _ranges(replica, disk, folder, start, end, since_ms)
    part, in_tier = replica.part, replica.segments_in_tier
    slices: list[LogSlice] = []
    for run in _runs(segment_ranges, bytes_per_slice):
        cuts = _even_cuts(run, bytes_per_slice) if in_tier else _cuts(disk, folder, run, bytes_per_slice)
        bounds = [run[0].start, *cuts, run[-1].end]
        share = sum(one.bytes for one in run) // (len(bounds) - 1)
        slices += [
            LogSlice(
                replica.place, part.topic, part.partition, low, high, share,
                segments_in_tier=_segments_with(in_tier, low, high), tier=replica.tier,
            )
            for low, high in pairwise(bounds)
        ]  # fmt: skip
    return [piece for one in slices for piece in _at_most(one, records_max)]


def total_bytes(replica: ReplicaFolder, start: int, end: int) -> int:
    """Return the approximate number of bytes in [start, end)."""
    disk, folder = replica.open()
    return sum(one.bytes for one in _ranges(replica, disk, folder, start, end, None))


def _ranges(
    replica: ReplicaFolder, disk: Disk, folder: str, start: int, end: int, since_ms: int | None
) -> list[_SegmentRange]:
    if replica.segments_in_tier:
        return _ranges_in_tier(disk, folder, replica.segments_in_tier, start, end, since_ms)
    return _segment_ranges(disk, folder, replica.segments(), start, end, since_ms)


def _ranges_in_tier(
    disk: Disk, folder: str, segments: Sequence[RemoteSegment], start: int, end: int, since_ms: int | None
) -> list[_SegmentRange]:
    """Return the ranges by what the manifest says; only where times begin to be late an index is read."""
    found: list[_SegmentRange] = []
    was_late = False
    for one, following in zip(segments, (*segments[1:], None), strict=True):
        low = max(one.base_offset, start)
        high = min(one.end_offset if following is None else following.base_offset, end)
        if low >= high:
            continue
        is_late = since_ms is None or one.max_timestamp >= since_ms
        if is_late and since_ms is not None and not was_late:
            low = _first_since(_time_index(disk, folder, one.base_offset), since_ms, low)
        was_late = is_late
        if is_late and low < high:
            found.append(_SegmentRange(one.base_offset, low, high, one.log_bytes))
    return found


def _segments_with(segments: Sequence[RemoteSegment], start: int, end: int) -> tuple[RemoteSegment, ...]:
    first = max(bisect_right(segments, start, key=lambda one: one.base_offset) - 1, 0)
    last = bisect_left(segments, end, key=lambda one: one.base_offset)
    return tuple(segments[first:last])


def _segment_ranges(
    disk: Disk, folder: str, bases: Sequence[int], start: int, end: int, since_ms: int | None
) -> list[_SegmentRange]:
    found: list[_SegmentRange] = []
    for slot, base in enumerate(bases):
        following = bases[slot + 1] if slot + 1 < len(bases) else None
        low = max(base if slot else start, start)
        high = end if following is None else min(following, end)
        if low >= high:
            continue
        try:
            size = disk.file_size(posixpath.join(folder, names.offset_name(base, names.LOG_SUFFIX)))
        except FileNotFoundError:
            size = 0  # removed since the listing: the read reports it
        if since_ms is not None:
            times = _time_index(disk, folder, base)
            if following is not None and len(times) and times.last_entry[0] < since_ms:
                continue
            low = _first_since(times, since_ms, low)
        if low < high:
            found.append(_SegmentRange(base, low, high, size))
    return found


def _first_since(times: TimeIndex, since_ms: int, low: int) -> int:
    """Return the first offset whose record may have timestamp ``since_ms`` or later, at least ``low``.

    Up to the offset of an index entry with an earlier timestamp all records are older.
    """
    if not len(times) or times.entries()[0][0] >= since_ms:
        return low
    return max(low, times.lookup(since_ms - 1) + 1)


def _time_index(disk: Disk, folder: str, base_offset: int) -> TimeIndex:
    path = posixpath.join(folder, names.offset_name(base_offset, names.TIME_INDEX_SUFFIX))
    try:
        data = disk.read_file(path)
        return TimeIndex.parse(base_offset, data[: len(data) - len(data) % TIME_ENTRY_BYTES])
    except (FileNotFoundError, CorruptIndex):
        return TimeIndex(base_offset)


def _runs(segment_ranges: Sequence[_SegmentRange], bytes_per_slice: int) -> Iterator[list[_SegmentRange]]:
    """Group small adjacent segments up to ``bytes_per_slice``; a large segment is a group alone."""
    run: list[_SegmentRange] = []
    for one in segment_ranges:
        follows = bool(run) and run[-1].end == one.start
        if run and (not follows or sum(each.bytes for each in run) + one.bytes > bytes_per_slice):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _even_cuts(run: Sequence[_SegmentRange], bytes_per_slice: int) -> list[int]:
    """Return the offsets at which a single large segment is divided, without reading its index."""
    one = run[0]
    count = min(-(-one.bytes // bytes_per_slice), one.end - one.start) if len(run) == 1 else 1
    return [one.start + (one.end - one.start) * number // count for number in range(1, count)]


def _cuts(disk: Disk, folder: str, run: Sequence[_SegmentRange], bytes_per_slice: int) -> list[int]:
    """Return the offsets of batches at which a single large segment is divided; none for other groups."""
    segment_range = run[0]
    if len(run) > 1 or segment_range.bytes <= bytes_per_slice:
        return []
    try:
        path = posixpath.join(folder, names.offset_name(segment_range.base_offset, names.LOG_SUFFIX))
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return []
    cuts: list[int] = []
    wanted = bytes_per_slice
    try:
        for last_offset, position in index_of(disk, folder, segment_range.base_offset).entries():
            if position < wanted:
                continue
            offset = base_offset_at(file, position)
            if offset is None or not segment_range.base_offset <= offset <= last_offset:
                continue  # ignore an entry that does not match the log
            if (cuts[-1] if cuts else segment_range.start) < offset < segment_range.end:
                cuts.append(offset)
            wanted = position + bytes_per_slice
    finally:
        file.close()
    return cuts


def _at_most(one: LogSlice, records_max: int | None) -> list[LogSlice]:
    count = 1 if records_max is None else -(-(one.end - one.start) // records_max)
    if count <= 1:
        return [one]
    bounds = [one.start + (one.end - one.start) * number // count for number in range(count + 1)]
    return [replace(one, start=low, end=high, bytes=one.bytes // count) for low, high in pairwise(bounds)]
