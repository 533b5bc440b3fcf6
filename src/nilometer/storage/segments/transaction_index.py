"""Aborted transactions of one segment (``.txnindex``), written when an abort marker is appended.

Entries are 34 bytes, big-endian: version (int16, 0), producer id, first offset, last offset (the
marker's) and the last stable offset at that moment (int64 each). A read-committed fetch returns the entries
that overlap its range, so that the client can skip their records. The file exists only if a transaction of
the segment was aborted. No file is opened here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

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
    if len(data) % ENTRY_SIZE:
        raise CorruptIndex(f"length {len(data)} is not a multiple of {ENTRY_SIZE}")
    entries: list[AbortedTxn] = []
    for version, *fields in _ENTRY.iter_unpack(data):
        entry = AbortedTxn(*fields)
        if version != CURRENT_VERSION:
            raise CorruptIndex(f"unknown version {version}")
        if entry.last_offset < base_offset:
            raise CorruptIndex(f"{entry} ends before the segment begins at {base_offset}")
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise CorruptIndex("entries are not in ascending order")
        entries.append(entry)
    return entries


def collect(
    entries: Sequence[AbortedTxn], from_offset: int, upper_bound_offset: int
) -> tuple[list[AbortedTxn], bool]:
    """Return the entries that overlap ``[from_offset, upper_bound_offset)``, and whether the search is done.

    It is done if no later entry, also in later segments, can overlap the range.
    """
    found: list[AbortedTxn] = []
    for entry in entries:
        if entry.last_offset >= from_offset and entry.first_offset < upper_bound_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return found, True
    return found, False
