"""Deadlines by key, at most one for each key, of which the earliest can be taken.

Moving a deadline to a later time, as every heartbeat does, costs one dictionary write: the heap keeps the
earlier time, and the deadline is checked when that comes. Equal times are due in the order in which they were
first set.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
KEPT = 1_000
"""So many entries of the heap may be outdated, and as many as there are deadlines: more are removed."""


class Timers(Generic[KeyT]):
    def __init__(self) -> None:
        self._deadlines: dict[KeyT, int] = {}
        self._heap: list[tuple[int, int, KeyT]] = []
        self._queued: dict[KeyT, int] = {}
        """The earliest time in the heap for each key; entries with other times are outdated."""
        self._pushes = 0

    def schedule(self, key: KeyT, at_ms: int) -> None:
        """Set the key's deadline, in place of an earlier one."""
        self._deadlines[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: KeyT) -> None:
        if self._deadlines.pop(key, None) is not None and len(self._heap) > 2 * len(self._deadlines) + KEPT:
            self._forget_cancelled()

    def _forget_cancelled(self) -> None:
        """Remove the outdated entries of the heap: their keys may be long, and their times far off."""
        self._queued = {key: at_ms for key, at_ms in self._queued.items() if key in self._deadlines}
        self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

    def deadline(self, key: KeyT) -> int | None:
        return self._deadlines.get(key)

    def next_deadline_ms(self) -> int | None:
        while self._heap:
            at_ms, _, key = self._heap[0]
            if self._queued.get(key) != at_ms:
                heapq.heappop(self._heap)
                continue
            deadline = self._deadlines.get(key)
            if deadline == at_ms:
                return at_ms
            heapq.heappop(self._heap)
            del self._queued[key]
            if deadline is not None:
                self._push(key, deadline)
        return None

    def take_due(self, now_ms: int) -> KeyT | None:
        """Remove the earliest deadline that is due, and return its key; None if none is due."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _push(self, key: KeyT, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._pushes += 1
        heapq.heappush(self._heap, (at_ms, self._pushes, key))
