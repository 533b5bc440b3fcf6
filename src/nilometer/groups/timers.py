"""Deadlines by key: one each, moved and cancelled at will, asked for the earliest.

Moving a deadline later, as every heartbeat does, costs one dictionary write: the heap keeps the earlier time
and looks again when that comes. Equal times are due in the order in which they were first set.
"""

from __future__ import annotations

import heapq
from enum import Enum, auto
from typing import NamedTuple


class TimerKind(Enum):
    CLASSIC_HEARTBEAT = auto()
    """A member, or a pending one, has not been heard of for its session time-out."""
    CLASSIC_JOIN = auto()
    """Whoever has not rejoined by now is out."""
    CLASSIC_INITIAL_JOIN = auto()
    """The initial rebalance delay is over, or is drawn out."""
    CLASSIC_SYNC = auto()
    """Whoever has not asked for its assignment by now is out."""
    CONSUMER_SESSION = auto()
    CONSUMER_REBALANCE = auto()
    """A member was told to revoke partitions and has not said that it did."""
    CONSUMER_JOIN = auto()
    """A member of the classic protocol was told to rejoin."""
    CONSUMER_SYNC = auto()
    """A member of the classic protocol has joined and is to ask for its assignment."""
    CONSUMER_ASSIGNMENT = auto()
    CONSUMER_REGEX = auto()
    OFFSETS_EXPIRY = auto()
    OFFSETS_PURGE = auto()
    """More offsets of deleted topics are to go than fit into one batch."""


CLASSIC_KINDS = frozenset(
    {
        TimerKind.CLASSIC_HEARTBEAT,
        TimerKind.CLASSIC_JOIN,
        TimerKind.CLASSIC_INITIAL_JOIN,
        TimerKind.CLASSIC_SYNC,
    }
)


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._queued: dict[TimerKey, int] = {}
        """The earliest time at which the heap will show each key."""
        self._pushes = 0

    def schedule(self, key: TimerKey, at_ms: int) -> None:
        """In place of whatever was scheduled for the key."""
        self._deadlines[key] = at_ms
        queued = self._queued.get(key)
        if queued is None or at_ms < queued:
            self._push(key, at_ms)

    def cancel(self, key: TimerKey) -> None:
        self._deadlines.pop(key, None)

    def deadline(self, key: TimerKey) -> int | None:
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

    def take_due(self, now_ms: int) -> TimerKey | None:
        """The earliest that is due, and no longer scheduled."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _push(self, key: TimerKey, at_ms: int) -> None:
        self._queued[key] = at_ms
        self._pushes += 1
        heapq.heappush(self._heap, (at_ms, self._pushes, key))
