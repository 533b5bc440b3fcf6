"""The sparse timestamp index of one segment (``.timeindex``): from a time to an offset.

Entries are 12 bytes, big-endian: a timestamp (int64) and a relative offset (int32). An entry says:
up to and including this offset, no record of the segment is younger than this timestamp, and the
batch that ends at the offset has it. Timestamps rise strictly, offsets never fall.

When a segment is rolled or closed its largest timestamp is appended (``skip_full_check`` in Kafka's
words), so that the last entry always tells the age of the whole segment. Nothing here opens a file.
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
        """Entries read back from a file; preallocated zeros behind them are dropped. Raises CorruptIndex."""
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
        """(timestamp, offset) of the last entry; (-1, base offset) of an empty index."""
        if not self._timestamps:
            return NO_TIMESTAMP, self.base_offset
        return self._timestamps[-1], self.base_offset + self._offsets[-1]

    def entries(self) -> list[tuple[int, int]]:
        """All entries as (timestamp, offset)."""
        base = self.base_offset
        return [
            (timestamp, base + relative)
            for timestamp, relative in zip(self._timestamps, self._offsets, strict=True)
        ]

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Append, unless the timestamp is not above the last one."""
        last_timestamp, last_offset = self.last_entry
        if timestamp <= last_timestamp:
            return
        if self._timestamps and offset < last_offset:
            raise CorruptIndex(f"entry ({timestamp}, {offset}) lies before the last one")
        self._timestamps.append(timestamp)
        self._offsets.append(offset - self.base_offset)

    def lookup(self, timestamp: int) -> int:
        """The offset of the last entry whose timestamp is not above ``timestamp``; else the base offset."""
        entry = self.lookup_entry(timestamp)
        return self.base_offset if entry is None else entry[1]

    def lookup_entry(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry whose timestamp is not above ``timestamp``, as (timestamp, offset)."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        return (self._timestamps[slot], self.base_offset + self._offsets[slot]) if slot >= 0 else None

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at ``offset`` and above."""
        keep = bisect_left(self._offsets, max(offset - self.base_offset, 0))
        del self._timestamps[keep:]
        del self._offsets[keep:]
        self._written = min(self._written, keep)

    def unwritten(self) -> bytes:
        """The encoded entries that the file lacks, taken as written from now on."""
        data = self._encode(self._written)
        self._written = len(self._timestamps)
        return data

    def forget_written(self) -> None:
        """The file was emptied: all entries are to be written again."""
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
                raise CorruptIndex("entries do not rise")
