"""A map from key to newest offset for one compaction round, in bounded memory.

Of a key, only 128 bits of hash are stored, in an open-addressing table of fixed size, so a round needs no
more memory than ``log.cleaner.dedupe.buffer.size``, however long the keys are. Two keys with the same hash
would be treated as one; with 128 bits that does not happen by chance (Kafka relies on the same). The hash is
Python's own (SipHash, with a secret of the process) of the key, and of the key after a prefix: both together
take a fourth of the time of one BLAKE2 or MD5 digest.

A search reads a place in memory that no cache has: with a million keys that is most of its time. So the three
integers of a key are neighbours. The table is not in huge pages: a search would take a quarter less time, but
where memory is fragmented the system takes milliseconds to find one, and the event loop waits for them.

Keys are put and looked up by batches, since a call for each would take as long as its work.

Invariant: never more entries than :attr:`OffsetMap.capacity`, so that a search always finds a free slot.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

from nilometer.compiled.widths import Int64, Int64View, WritableView, let_threads_run
from nilometer.wire.record_batch import BatchHeader

# A mark for each record that the first pass of a round has read: whether the second pass keeps it.
#
# While the keys are read, a record drops the one before it of the same key. So the second pass needs neither
# the key of a record that was read nor a search for it: a batch of which all records are kept is copied, one
# of which none is kept is not even decompressed.
#
# Offsets without a mark are UNKNOWN, and the second pass looks up the keys of such a batch: those below the
# first dirty offset, those above the memory for marks (a byte for each offset), and batches that were
# compacted before, whose records are fewer than their offsets.

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


NO_OFFSET = -1
ALWAYS_NEWER = (1 << 63) - 1
"""The newest offset of no key at all: a record without a key is removed."""
SLOT_INTEGERS = 3
"""A slot has the offset after the newest one of the key (0: it is free), and both halves of the hash."""
SLOT_BYTES = SLOT_INTEGERS * 8
LOAD_FACTOR = 0.9
"""Kafka's default of ``log.cleaner.io.buffer.load.factor``."""

PIECE_BYTES = 4 << 20
"""How much memory is freed at once. All 128 MB in one call would hold the interpreter, and with it the event
loop, for tens of milliseconds."""

_CAN_FREE_PARTS = hasattr(mmap, "MADV_DONTNEED")
_SECOND = b"second "
"""The prefix of the key for the second half of its hash."""


class OffsetMap:
    __slots__ = ("_count", "_memory", "_slots", "_table", "capacity")

    def __init__(
        self, buffer_bytes: int, load_factor: float = LOAD_FACTOR, keys_max: int | None = None
    ) -> None:
        """Allocate a table of at most ``buffer_bytes``; smaller if at most ``keys_max`` keys will be put.

        Raises ValueError if not even one key fits.
        """
        slots = buffer_bytes // SLOT_BYTES
        if keys_max is not None:
            slots = min(slots, int(keys_max / load_factor) + 2)
        self.capacity = min(int(slots * load_factor), slots - 1)
        if self.capacity < 1:
            raise ValueError(f"an offset map of {buffer_bytes} bytes holds no key")
        self._slots = slots
        self._memory = _zeros(slots * SLOT_BYTES)
        self._table = memoryview(self._memory).cast("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= self.capacity

    @property
    def utilization(self) -> float:
        """The share of the capacity that is in use, from 0 to 1."""
        return self._count / self.capacity if self.capacity else 0.0

    def release(self) -> None:
        """Free the memory, piece by piece; the map is empty and full afterwards."""
        if not self.capacity:
            return
        self._count = self.capacity = 0
        self._slots = 1
        memory, self._memory = self._memory, _zeros(SLOT_BYTES)
        self._table.release()
        self._table = memoryview(self._memory).cast("q")
        if _CAN_FREE_PARTS:
            for start in range(0, len(memory), PIECE_BYTES):
                memory.madvise(mmap.MADV_DONTNEED, start, min(PIECE_BYTES, len(memory) - start))
        memory.close()

    def put_all(
        self, records: Iterable[tuple[bytes | None, int]], base_offset: int, marks: RecordMarks
    ) -> int | None:
        """Set the newest offset of each key, and mark the records that are replaced.

        ``records``: key and offset delta of each record, with offsets above all that were put before. A
        record without a key is marked, too. Returns the offset of the first record for which there was no
        room, and with which it ended; None if all were put.
        """
        table: Int64View = self._table
        width: Int64 = SLOT_INTEGERS
        slots: Int64 = self._slots
        size: Int64 = slots * width
        free: Int64 = self.capacity - self._count
        room: Int64 = free
        dropped: WritableView = marks.marks
        marked: Int64 = len(dropped)
        drop: Int64 = DROP
        end_of_base: Int64 = base_offset + 1
        mark_of_end: Int64 = -1 - marks.first_offset
        prefix = _SECOND
        delta: Int64
        first: Int64
        second: Int64
        at: Int64
        end: Int64
        turns: Int64 = 0
        for key, delta in records:
            turns += 1
            if not turns & 0x3FF:
                let_threads_run()
            if key is None:
                at = end_of_base + delta + mark_of_end
                if 0 <= at < marked:
                    dropped[at] = drop
                continue
            first = hash(key)
            second = hash(prefix + key)
            at = first % slots * width
            while True:
                end = table[at]
                if end == 0:
                    if room == 0:
                        self._count += free
                        return base_offset + delta
                    room -= 1
                    table[at] = end_of_base + delta
                    table[at + 1] = first
                    table[at + 2] = second
                    break
                if table[at + 1] == first and table[at + 2] == second:
                    if end + mark_of_end < marked:
                        dropped[end + mark_of_end] = drop
                    table[at] = end_of_base + delta
                    break
                at += width
                if at == size:
                    at = 0
        self._count += free - room
        return None

    def newest(self, keys: Iterable[bytes | None]) -> list[int]:
        """Return the newest offset of each key; :data:`NO_OFFSET` for one that was not put, and
        :data:`ALWAYS_NEWER` for None."""
        table: Int64View = self._table
        width: Int64 = SLOT_INTEGERS
        slots: Int64 = self._slots
        size: Int64 = slots * width
        prefix = _SECOND
        first: Int64
        at: Int64
        end: Int64
        turns: Int64 = 0
        found: list[int] = []
        for key in keys:
            turns += 1
            if not turns & 0x3FF:
                let_threads_run()
            if key is None:
                found.append(ALWAYS_NEWER)
                continue
            first = hash(key)
            at = first % slots * width
            end = table[at]
            while end:
                if table[at + 1] == first and table[at + 2] == hash(prefix + key):
                    break
                at += width
                if at == size:
                    at = 0
                end = table[at]
            found.append(end - 1)
        return found


def _zeros(size: int) -> mmap.mmap:
    """Return memory of this process, filled with zeros; the system provides it where it is used."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
