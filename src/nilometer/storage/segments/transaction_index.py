"""Aborted transactions of one segment (``.txnindex``), written when an abort marker is appended.

Entries are 34 bytes, big-endian: version (int16, 0), producer id, first offset, last offset (the
marker's) and the last stable offset at that moment (int64 each). A read-committed fetch returns the entries
that overlap its range, so that the client can skip their records. The file exists only if a transaction of
the segment was aborted. No file is opened here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple, overload

from nilometer.storage.segments.indexes import CorruptIndex

ENTRY_SIZE = 34
CURRENT_VERSION = 0

_ENTRY = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ENTRY.pack(CURRENT_VERSION, *self)


def parse(base_offset: int, data: bytes) -> list[AbortedTxn]:
    """Parse the content of a ``.txnindex`` file. Raises CorruptIndex."""
    return list(PackedEntries(base_offset, data))


BLOCK_ENTRIES = 256
_BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_SIZE


class PackedEntries(Sequence[AbortedTxn]):
    """The entries of a segment, by last offset, encoded as in the file: of small transactions a segment may
    have a million, and one that stays open makes all that end meanwhile begin before any that follow.

    Of each block of entries it is known where the first of their transactions begins, so that a search passes
    over those that overlap nothing."""

    __slots__ = ("_begins", "_data", "_stable")

    def __init__(self, base_offset: int, data: bytes) -> None:
        """``data``: the content of the file. Raises CorruptIndex."""
        if len(data) % ENTRY_SIZE:
            raise CorruptIndex(f"length {len(data)} is not a multiple of {ENTRY_SIZE}")
        before = None
        for version, producer_id, first_offset, last_offset, stable_offset in _ENTRY.iter_unpack(data):
            if version != CURRENT_VERSION:
                raise CorruptIndex(f"unknown version {version}")
            if last_offset < base_offset:
                entry = AbortedTxn(producer_id, first_offset, last_offset, stable_offset)
                raise CorruptIndex(f"{entry} ends before the segment begins at {base_offset}")
            if before is not None and last_offset <= before:
                raise CorruptIndex("entries are not in ascending order")
            before = last_offset
        self._data = bytearray()
        self._begins: list[int] = []
        """By block: the least first offset."""
        self._stable: list[int] = []
        """By block: the highest last stable offset."""
        self.extend(data)

    def __len__(self) -> int:
        return len(self._data) // ENTRY_SIZE

    @overload
    def __getitem__(self, index: int) -> AbortedTxn: ...
    @overload
    def __getitem__(self, index: slice) -> list[AbortedTxn]: ...
    def __getitem__(self, index: int | slice) -> AbortedTxn | list[AbortedTxn]:
        if isinstance(index, slice):
            return [self[slot] for slot in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return AbortedTxn(*_ENTRY.unpack_from(self._data, index * ENTRY_SIZE)[1:])

    def extend(self, encoded: bytes) -> None:
        slot = len(self)
        self._data += encoded
        position = 0
        while position < len(encoded):
            end = position + _BLOCK_BYTES - slot % BLOCK_ENTRIES * ENTRY_SIZE
            _, _, begins, _, stable = zip(*_ENTRY.iter_unpack(encoded[position:end]), strict=True)
            if slot % BLOCK_ENTRIES == 0:
                self._stable.append(max(stable))
                self._begins.append(min(begins))  # last: readers walk over it
            else:
                self._begins[-1] = min(self._begins[-1], *begins)
                self._stable[-1] = max(self._stable[-1], *stable)
            slot += len(begins)
            position = end

    def collect(
        self,
        from_offset: int,
        upper_bound_offset: int,
        producers: Collection[int] | None = None,
        at_most: int | None = None,
    ) -> tuple[list[AbortedTxn], bool]:
        """Return the entries that overlap ``[from_offset, upper_bound_offset)``, and whether the search is
        done: whether no later entry, also in later segments, can overlap the range.

        ``producers``: only their entries. ``at_most``: the search ends when it has found more.
        """
        found: list[AbortedTxn] = []
        begin = count_below(self, from_offset) * ENTRY_SIZE
        for block in range(begin // _BLOCK_BYTES, len(self._begins)):
            may_end = self._stable[block] >= upper_bound_offset
            if not may_end and self._begins[block] >= upper_bound_offset:
                continue
            part = self._data[max(begin, block * _BLOCK_BYTES) : (block + 1) * _BLOCK_BYTES]
            for _, producer_id, first_offset, last_offset, stable_offset in _ENTRY.iter_unpack(part):
                if first_offset < upper_bound_offset and (producers is None or producer_id in producers):
                    found.append(AbortedTxn(producer_id, first_offset, last_offset, stable_offset))
                if stable_offset >= upper_bound_offset:
                    return found, True
            if at_most is not None and len(found) > at_most:
                return found, True
        return found, False


def _last_offset(entry: AbortedTxn) -> int:
    return entry.last_offset


def count_below(entries: Sequence[AbortedTxn], offset: int) -> int:
    """Return how many transactions ended below ``offset``."""
    return bisect_left(entries, offset, key=_last_offset)
