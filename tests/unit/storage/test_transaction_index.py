"""Which aborted transactions a fetch has to know of, and how much of an index is walked to find them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from nilometer.storage.segments import transaction_index
from nilometer.storage.segments.transaction_index import BLOCK_ENTRIES, AbortedTxn, PackedEntries


def packed(entries: list[AbortedTxn]) -> PackedEntries:
    """Some as if they were read from the file, the others as if they were appended one by one."""
    half = len(entries) // 2
    found = PackedEntries(0, b"".join(entry.encode() for entry in entries[:half]))
    for entry in entries[half:]:
        found.extend(entry.encode())
    return found


def overlapping(entries: list[AbortedTxn], start: int, end: int) -> tuple[list[AbortedTxn], bool]:
    found: list[AbortedTxn] = []
    for entry in entries:
        if entry.last_offset >= start:
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
    return found, False


@pytest.mark.parametrize("count", [0, 1, 7, BLOCK_ENTRIES, 3 * BLOCK_ENTRIES + 5])
def test_a_search_finds_what_overlaps_the_range_and_says_whether_later_entries_may(count: int) -> None:
    chance = random.Random(count)
    entries: list[AbortedTxn] = []
    stable = last = 0
    for number in range(count):
        last += chance.randint(1, 5)
        stable = max(stable, chance.randint(0, last))
        entries.append(AbortedTxn(number, max(0, last - chance.choice((1, 3, 40, 2 * last))), last, stable))
    index = packed(entries)
    assert list(index) == entries
    for _ in range(200):
        start = chance.randint(0, last + 2)
        end = start + chance.randint(0, 30)
        assert index.collect(start, end) == overlapping(entries, start, end)


class Counting:
    """The layout of an entry, which counts how many are decoded."""

    def __init__(self, layout: Any) -> None:
        self._layout = layout
        self.pack = layout.pack
        self.decoded = 0

    def unpack_from(self, data: bytes, position: int) -> Any:
        self.decoded += 1
        return self._layout.unpack_from(data, position)

    def iter_unpack(self, data: bytes) -> Iterator[Any]:
        self.decoded += len(data) // transaction_index.ENTRY_SIZE
        return self._layout.iter_unpack(data)


def test_what_ended_while_one_transaction_was_open_is_not_walked_for_each_fetch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last stable offset says only of later entries that they overlap nothing before it."""
    short = [AbortedTxn(1, number, number + 1, 0) for number in range(1, 200_000, 2)]
    index = packed([*short, AbortedTxn(2, 0, 200_001, 200_001)])
    counting = Counting(transaction_index._ENTRY)
    monkeypatch.setattr(transaction_index, "_ENTRY", counting)
    found, is_done = index.collect(1_000, 1_002)
    assert is_done
    assert found == [
        short[499],
        short[500],
        AbortedTxn(2, 0, 200_001, 200_001),
    ]
    assert counting.decoded < 3 * BLOCK_ENTRIES
