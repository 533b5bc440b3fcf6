"""The sparse offset index of one segment (``.index``): from an offset to a byte position in the log file.

Entries are 8 bytes, big-endian: an offset relative to the segment's base offset (int32) and the byte position
of a batch (int32). The offset is the *last* one of the batch at that position. A search starts at the entry
with the largest offset not above the wanted one.

Invariant: both columns increase strictly. In memory the columns are arrays; ``unwritten`` returns the entries
that the file does not have yet. No file is opened here.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise

ENTRY_SIZE = 8
RELATIVE_OFFSET_MAX = 2**31 - 1


class CorruptIndex(Exception):
    """An index file is invalid or contradicts its segment. It can be rebuilt from the log."""


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
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"length {len(data)} is not a multiple of {ENTRY_SIZE}")
        columns = array("i")
        columns.frombytes(data)
        _to_or_from_big_endian(columns)
        index = cls(base_offset)
        index._offsets = columns[0::2]
        index._positions = columns[1::2]
        index._drop_preallocated()
        index._check_rising()
        index._written = len(index._offsets)
        return index

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
        slot = bisect_right(self._offsets, offset - self.base_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

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
        columns = array("i", bytes(ENTRY_SIZE * (len(self._offsets) - start)))
        columns[0::2] = self._offsets[start:]
        columns[1::2] = self._positions[start:]
        _to_or_from_big_endian(columns)
        return columns.tobytes()

    def _drop_preallocated(self) -> None:
        count = len(self._offsets)
        while count and self._offsets[count - 1] == 0 and self._positions[count - 1] == 0:
            count -= 1
        del self._offsets[count:]
        del self._positions[count:]

    def _check_rising(self) -> None:
        for column in (self._offsets, self._positions):
            if column and column[0] < 0:
                raise CorruptIndex("a negative entry")
            if any(later <= earlier for earlier, later in pairwise(column)):
                raise CorruptIndex("entries are not in ascending order")


def _to_or_from_big_endian(column: array[int]) -> None:
    if sys.byteorder == "little":
        column.byteswap()
