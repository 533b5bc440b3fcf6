"""An LRU cache of the indexes of sealed segments, bounded by the number of their entries.

An active segment keeps its own indexes, which grow. Those of sealed segments never change: they are read
from their files on demand and evicted when the cache is full.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from nilometer.storage.segments.offset_index import OffsetIndex
from nilometer.storage.segments.time_index import TimeIndex

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
