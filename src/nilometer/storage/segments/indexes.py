"""The sparse indexes of a segment: from offsets to byte positions, from timestamps to offsets; and the cache
of those of sealed segments.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from operator import le, lt
from typing import NamedTuple

# The sparse offset index of one segment (``.index``): from an offset to a byte position in the log file.
#
# Entries are 8 bytes, big-endian: an offset relative to the segment's base offset (int32) and the byte
# position of a batch (int32). The offset is the *last* one of the batch at that position. A search starts at
# the entry with the largest offset not above the wanted one.
#
# Invariant: both columns increase strictly. In memory the columns are arrays; ``unwritten`` returns the
# entries that the file does not have yet. No file is opened here.

OFFSET_ENTRY_SIZE = 8
RELATIVE_OFFSET_MAX = 2**31 - 1


class CorruptIndex(Exception):
    """An index file is invalid or contradicts its segment. It can be rebuilt from the log."""


CHECKED_AT_ONCE = 16_384
"""So many entries are compared in one step of C, which keeps the interpreter's lock."""


def _rises(column: array[int], in_order: Callable[[int, int], bool]) -> bool:
    for start in range(0, len(column), CHECKED_AT_ONCE):
        part = column[start : start + CHECKED_AT_ONCE + 1]
        if not all(map(in_order, part, part[1:])):
            return False
    return True


def _without_preallocated(data: bytes, entry_size: int) -> bytes:
    """Return the entries of a file without those of zeros at its end."""
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]


class OffsetIndex:
    __slots__ = ("_offsets", "_positions", "_written", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("i")
        self._positions = array("i")
        self._written = 0

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """Parse the content of an index file; the zeros that Kafka preallocates at its end are dropped.

        Raises CorruptIndex.
        """
        if len(data) % OFFSET_ENTRY_SIZE:
            raise CorruptIndex(f"length {len(data)} is not a multiple of {OFFSET_ENTRY_SIZE}")
        columns = array("i")
        columns.frombytes(_without_preallocated(data, OFFSET_ENTRY_SIZE))
        _to_or_from_big_endian(columns)
        index = cls(base_offset)
        index._offsets = columns[0::2]
        index._positions = columns[1::2]
        index._check_rising()
        index._written = len(index._offsets)
        return index

    def _check_rising(self) -> None:
        for column in (self._offsets, self._positions):
            if column and column[0] < 0:
                raise CorruptIndex(f"the first entry is negative: {self._offsets[0]}, {self._positions[0]}")
            if not _rises(column, lt):
                raise CorruptIndex("entries are not in ascending order")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset if the index is empty."""
        return self.base_offset + (self._offsets[-1] if self._offsets else 0)

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries as (offset, byte position in the segment)."""
        base = self.base_offset
        return [
            (base + relative, position)
            for relative, position in zip(self._offsets, self._positions, strict=True)
        ]

    def append(self, offset: int, position: int) -> None:
        relative = offset - self.base_offset
        if self._offsets and (relative <= self._offsets[-1] or position <= self._positions[-1]):
            raise CorruptIndex(f"entry ({offset}, {position}) is not above the last entry")
        self._offsets.append(relative)
        self._positions.append(position)

    def lookup(self, offset: int) -> int:
        """Return the position of the last entry whose offset is not above ``offset``; 0 if there is none."""
        entry = self.lookup_entry(offset)
        return 0 if entry is None else entry[1]

    def lookup_entry(self, offset: int) -> tuple[int, int] | None:
        """Return the last entry whose offset is not above ``offset``, as (offset, position), or None."""
        slot = bisect_right(self._offsets, offset - self.base_offset) - 1
        return (self.base_offset + self._offsets[slot], self._positions[slot]) if slot >= 0 else None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries with an offset of ``offset`` or more."""
        keep = bisect_left(self._offsets, max(offset - self.base_offset, 0))
        del self._offsets[keep:]
        del self._positions[keep:]
        self._written = min(self._written, keep)

    def unwritten(self) -> bytes:
        """Return the encoded entries that the file does not have, and mark them as written."""
        data = self._encode(self._written)
        self._written = len(self._offsets)
        return data

    @property
    def unwritten_count(self) -> int:
        return len(self._offsets) - self._written

    def forget_written(self) -> None:
        """Mark all entries as unwritten, because the file was emptied."""
        self._written = 0

    def to_bytes(self) -> bytes:
        return self._encode(0)

    def _encode(self, start: int) -> bytes:
        columns = array("i", bytes(OFFSET_ENTRY_SIZE * (len(self._offsets) - start)))
        columns[0::2] = self._offsets[start:]
        columns[1::2] = self._positions[start:]
        _to_or_from_big_endian(columns)
        return columns.tobytes()


def _to_or_from_big_endian(column: array[int]) -> None:
    if sys.byteorder == "little":
        column.byteswap()


# The sparse timestamp index of one segment (``.timeindex``): from a timestamp to an offset.
#
# Entries are 12 bytes, big-endian: a timestamp in ms (int64) and an offset relative to the segment's base
# (int32). An entry means: up to and including this offset no record of the segment has a larger timestamp,
# and the batch that ends at the offset has this one. Timestamps increase strictly, offsets never decrease.
#
# When a segment is rolled or closed its largest timestamp is appended even if the index is full (Kafka's
# ``skipFullCheck``), so the last entry is always the largest timestamp of the segment. No file is opened
# here.

TIME_ENTRY_SIZE = 12
NO_TIMESTAMP = -1

_TIME_ENTRY = struct.Struct(">qi")


class TimeIndex:
    __slots__ = ("_offsets", "_timestamps", "_written", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")
        self._written = 0

    @classmethod
    def parse(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Parse an index file's content; preallocated zeros at its end are dropped. Raises CorruptIndex."""
        if len(data) % TIME_ENTRY_SIZE:
            raise CorruptIndex(f"length {len(data)} is not a multiple of {TIME_ENTRY_SIZE}")
        used = _without_preallocated(data, TIME_ENTRY_SIZE)
        count = len(used) // TIME_ENTRY_SIZE
        index = cls(base_offset)
        index._timestamps = array("q", _column(used, 0, 8, count))
        index._offsets = array("i", _column(used, 8, 4, count))
        for column in (index._timestamps, index._offsets):
            _to_or_from_big_endian(column)
        index._check_rising()
        index._written = count
        return index

    def _check_rising(self) -> None:
        if self._offsets and self._offsets[0] < 0:
            raise CorruptIndex(f"the first entry has the negative relative offset {self._offsets[0]}")
        if not (_rises(self._timestamps, lt) and _rises(self._offsets, le)):
            raise CorruptIndex("entries are not in ascending order")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last_entry(self) -> tuple[int, int]:
        """The last entry as (timestamp, offset); (-1, base offset) if the index is empty."""
        if not self._timestamps:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def entries(self) -> list[tuple[int, int]]:
        """Return all entries as (timestamp in ms, offset)."""
        base = self.base_offset
        return [
            (timestamp, base + relative)
            for timestamp, relative in zip(self._timestamps, self._offsets, strict=True)
        ]

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Append an entry if its timestamp is above the last one. Raises CorruptIndex if offsets decrease."""
        last_timestamp, last_offset = self.last_entry
        if timestamp <= last_timestamp:
            return
        if self._timestamps and offset < last_offset:
            raise CorruptIndex(f"entry ({timestamp}, {offset}) is before the last entry")
        self._timestamps.append(timestamp)
        self._offsets.append(offset - self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """Return the offset of the last entry not above ``timestamp``; the base offset if there is none."""
        entry = self.lookup_entry(timestamp)
        return self.base_offset if entry is None else entry[1]

    def lookup_entry(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last entry not above ``timestamp``, as (timestamp, offset), or None."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        return (self._timestamps[slot], self.base_offset + self._offsets[slot]) if slot >= 0 else None

    def truncate_to(self, offset: int) -> None:
        """Remove the entries with an offset of ``offset`` or more."""
        keep = bisect_left(self._offsets, max(offset - self.base_offset, 0))
        del self._timestamps[keep:]
        del self._offsets[keep:]
        self._written = min(self._written, keep)

    def unwritten(self) -> bytes:
        """Return the encoded entries that the file does not have, and mark them as written."""
        data = self._encode(self._written)
        self._written = len(self._timestamps)
        return data

    def forget_written(self) -> None:
        """Mark all entries as unwritten, because the file was emptied."""
        self._written = 0

    def to_bytes(self) -> bytes:
        return self._encode(0)

    def _encode(self, start: int) -> bytes:
        pairs = zip(self._timestamps[start:], self._offsets[start:], strict=True)
        return b"".join(_TIME_ENTRY.pack(timestamp, relative) for timestamp, relative in pairs)


def _column(data: bytes, start: int, size: int, count: int) -> bytearray:
    """Return the bytes of one column of ``count`` time index entries."""
    column = bytearray(size * count)
    for at in range(size):
        column[at::size] = bytearray(data[start + at :: TIME_ENTRY_SIZE])  # of one type: it is compiled, too
    return column


# An LRU cache of the indexes of sealed segments, bounded by the number of their entries.
#
# An active segment keeps its own indexes, which grow. Those of sealed segments never change: they are read
# from their files on demand and evicted when the cache is full.

ENTRIES_MAX = 4_000_000
"""Largest number of cached entries. An offset entry and a time entry take 20 bytes, so about 80 MB.

A full 1 GB segment has 262,144 of each.
"""


class SegmentIndexes(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex

    @classmethod
    def empty(cls, base_offset: int) -> SegmentIndexes:
        return cls(OffsetIndex(base_offset), TimeIndex(base_offset))

    def add(
        self, position: int, last_offset: int, size: int, largest: tuple[int, int], since: int, interval: int
    ) -> int:
        """Add the next batch of the log file, at ``position``: it gets entries if those before it have more
        than ``interval`` bytes since the last entry.

        ``largest``: the largest timestamp up to this batch, and the last offset of the first batch that has
        it. ``since``: the bytes since the last entry; return those with this batch.
        """
        if since > interval:
            self.offsets.append(last_offset, position)
            self.times.maybe_append(*largest)
            since = 0
        return since + size


class IndexCache:
    __slots__ = ("_entries", "_entries_max", "_indexes")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries = 0
        self._indexes: OrderedDict[str, SegmentIndexes] = OrderedDict()

    def get(self, log_path: str) -> SegmentIndexes | None:
        indexes = self._indexes.get(log_path)
        if indexes is not None:
            self._indexes.move_to_end(log_path)
        return indexes

    def put(self, log_path: str, indexes: SegmentIndexes) -> None:
        self.forget(log_path)
        self._indexes[log_path] = indexes
        self._entries += _weight(indexes)
        while self._entries > self._entries_max and len(self._indexes) > 1:
            self._entries -= _weight(self._indexes.popitem(last=False)[1])

    def forget(self, log_path: str) -> None:
        indexes = self._indexes.pop(log_path, None)
        if indexes is not None:
            self._entries -= _weight(indexes)


def _weight(indexes: SegmentIndexes) -> int:
    return len(indexes.offsets) + len(indexes.times) + 16
