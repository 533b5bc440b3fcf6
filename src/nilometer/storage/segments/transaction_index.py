"""Aborted transactions of one segment (``.txnindex``), written when an abort marker is appended.

Entries are 34 bytes, big-endian: version (int16, 0), producer id, first offset, last offset (the
marker's) and the last stable offset at that moment (int64 each). A read-committed fetch returns the entries
that overlap its range, so that the client can skip their records. The file exists only if a transaction of
the segment was aborted. No file is opened here.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
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


class PackedEntries(Sequence[AbortedTxn]):
    """The entries of a segment, by last offset, encoded as in the file: of small transactions a segment may
    have a million."""

    __slots__ = ("_data",)

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
        self._data = bytearray(data)

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
        self._data += encoded


def _last_offset(entry: AbortedTxn) -> int:
    return entry.last_offset


def count_below(entries: Sequence[AbortedTxn], offset: int) -> int:
    """Return how many transactions ended below ``offset``."""
    return bisect_left(entries, offset, key=_last_offset)


def collect(
    entries: Sequence[AbortedTxn], from_offset: int, upper_bound_offset: int
) -> tuple[list[AbortedTxn], bool]:
    """Return the entries that overlap ``[from_offset, upper_bound_offset)``, and whether the search is done.

    It is done if no later entry, also in later segments, can overlap the range.
    """
    found: list[AbortedTxn] = []
    for slot in range(count_below(entries, from_offset), len(entries)):
        entry = entries[slot]
        if entry.first_offset < upper_bound_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return found, True
    return found, False
