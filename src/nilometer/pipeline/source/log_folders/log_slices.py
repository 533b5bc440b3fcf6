"""Divides a replica's log into slices, one per task: offset ranges cut at batches of the offset indexes.

Uses the segments' sizes and indexes. A slice contains offsets only, no positions in files, since files may be
compacted, rolled or deleted before a task reads them.

Invariants: slices do not overlap, and together they are the requested range, except segments that are too old
for ``since_ms``; a slice has about ``bytes_per_slice`` bytes, and at least one batch.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from nilometer.pipeline.source.log_folders.log_transactions import Aborted
from nilometer.pipeline.source.log_folders.places import open_place
from nilometer.pipeline.source.log_folders.replica_folders import ReplicaFolder
from nilometer.pipeline.source.log_folders.slice_reader import base_offset_at, index_of
from nilometer.runtime import Disk
from nilometer.storage import names
from nilometer.storage.segments.indexes import TIME_ENTRY_SIZE as TIME_ENTRY_BYTES
from nilometer.storage.segments.indexes import CorruptIndex, TimeIndex


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
    disk, folder = open_place(replica.place)
    segment_ranges = _segment_ranges(disk, folder, replica.segments(), start, end, since_ms)
    part = replica.part
    slices: list[LogSlice] = []
    for run in _runs(segment_ranges, bytes_per_slice):
        bounds = [run[0].start, *_cuts(disk, folder, run, bytes_per_slice), run[-1].end]
        share = sum(one.bytes for one in run) // (len(bounds) - 1)
        slices += [
            LogSlice(replica.place, part.topic, part.partition, low, high, share)
            for low, high in pairwise(bounds)
        ]
    return [piece for one in slices for piece in _at_most(one, records_max)]


def total_bytes(replica: ReplicaFolder, start: int, end: int) -> int:
    """Return the approximate number of bytes in [start, end)."""
    disk, folder = open_place(replica.place)
    return sum(one.bytes for one in _segment_ranges(disk, folder, replica.segments(), start, end, None))


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
