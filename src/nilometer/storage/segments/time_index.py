"""The sparse timestamp index of one segment (``.timeindex``): from a timestamp to an offset.

Entries are 12 bytes, big-endian: a timestamp in ms (int64) and an offset relative to the segment's base
(int32). An entry means: up to and including this offset no record of the segment has a larger timestamp, and
the batch that ends at the offset has this one. Timestamps increase strictly, offsets never decrease.

When a segment is rolled or closed its largest timestamp is appended even if the index is full (Kafka's
``skipFullCheck``), so the last entry is always the largest timestamp of the segment. No file is opened here.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right

from nilometer.storage.segments.offset_index import CorruptIndex

ENTRY_SIZE = 12
NO_TIMESTAMP = -1

_ENTRY = struct.Struct(">qi")


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
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"length {len(data)} is not a multiple of {ENTRY_SIZE}")
        index = cls(base_offset)
        for timestamp, relative in _ENTRY.iter_unpack(data):
            if timestamp == 0 and relative == 0:
                break
            index._timestamps.append(timestamp)
            index._offsets.append(relative)
        index._check_rising()
        index._written = len(index._timestamps)
        return index

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
        return b"".join(_ENTRY.pack(timestamp, relative) for timestamp, relative in pairs)

    def _check_rising(self) -> None:
        if self._offsets and self._offsets[0] < 0:
            raise CorruptIndex("a negative offset")
        stamps, offsets = self._timestamps, self._offsets
        for slot in range(1, len(stamps)):
            if stamps[slot] <= stamps[slot - 1] or offsets[slot] < offsets[slot - 1]:
                raise CorruptIndex("entries are not in ascending order")
