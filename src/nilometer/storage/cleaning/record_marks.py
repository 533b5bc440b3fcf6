"""A mark for each record that the first pass of a round has read: whether the second pass keeps it.

While the keys are read, a record drops the one before it of the same key. So the second pass needs neither
the key of a record that was read nor a search for it: a batch of which all records are kept is copied, one of
which none is kept is not even decompressed.

Offsets without a mark are UNKNOWN, and the second pass looks up the keys of such a batch: those below the
first dirty offset, those above the memory for marks (a byte for each offset), and batches that were compacted
before, whose records are fewer than their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence

from nilometer.wire.record_batch import BatchHeader

KEEP = 0
DROP = 1
TOMBSTONE = 2
"""A record without a value, to be kept until the delete horizon of its batch."""
UNKNOWN = 3

_UNKNOWN = bytes((UNKNOWN,))


class RecordMarks:
    __slots__ = ("_limit", "first_offset", "marks")

    def __init__(self, first_offset: int, limit: int) -> None:
        """``first_offset``: that of the first mark; ``limit``: the largest number of marks."""
        self.first_offset = first_offset
        self._limit = limit
        self.marks = bytearray()
        """The mark of each offset from ``first_offset`` on."""

    def add(self, header: BatchHeader, deltas: list[int], tombstones: Sequence[int]) -> None:
        """Add the marks of a batch, above all batches before: each record is kept for now.

        ``deltas``: the records' offset deltas; ``tombstones``: which records, counted from 0, have no value.
        """
        if deltas != list(range(len(deltas))):
            if not _are_ascending(deltas, header.last_offset_delta):
                self.give_up()
            return
        at = header.base_offset - self.first_offset
        gap = at - len(self.marks)
        if gap < 0 or at + len(deltas) > self._limit:
            return
        self.marks += _UNKNOWN * gap
        self.marks += bytes(len(deltas))
        for index in tombstones:
            self.marks[at + index] = TOMBSTONE

    def forget(self, base_offset: int) -> None:
        """Forget the marks from ``base_offset`` on: not all keys of that batch could be remembered."""
        del self.marks[max(base_offset - self.first_offset, 0) :]

    def give_up(self) -> None:
        """Have no marks at all: an offset is not that of one record."""
        self._limit = 0
        self.marks.clear()

    def of(self, header: BatchHeader) -> bytes | None:
        """Return the marks of a batch's records, in order; None if those of some are unknown."""
        at = header.base_offset - self.first_offset
        if at < 0:
            return None
        found = bytes(self.marks[at : at + header.records_count])
        return found if len(found) == header.records_count and UNKNOWN not in found else None


def _are_ascending(deltas: list[int], last: int) -> bool:
    return deltas == sorted(set(deltas)) and deltas[0] >= 0 and deltas[-1] <= last
