"""What Kafka's ``raft-metrics`` measure of a node of the quorum: from its replica, after each event.

Averages, maxima and rates are of the last half to whole minute, as Kafka's of two samples of 30 s.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, NamedTuple

from nilometer.identifiers import NO_LEADER, Offset
from nilometer.raft.leading import Leading
from nilometer.raft.replica import Electing, Following, RaftReplica, Resigned

SAMPLE_MS: Final = 30_000
OPEN_MAX: Final = 1_000
"""So many appends whose commit is awaited are timed at once; the next ones are not."""


class Reading(NamedTuple):
    average: float
    """NaN if nothing was observed; so is ``largest``."""
    largest: float
    rate: float
    """The sum of the values per second."""


class Samples:
    """Values of the last half to whole minute."""

    __slots__ = ("_before", "_began_ms", "_now")

    def __init__(self, now_ms: int) -> None:
        self._began_ms = now_ms
        self._now = _Sample()
        self._before: _Sample | None = None

    def observe(self, value: int, now_ms: int) -> None:
        self._turn(now_ms)
        self._now.add(value)

    def reading(self, now_ms: int) -> Reading:
        self._turn(now_ms)
        both = [one for one in (self._before, self._now) if one is not None]
        count, total = sum(one.count for one in both), sum(one.total for one in both)
        seconds = (now_ms - self._began_ms + (SAMPLE_MS if self._before is not None else 0)) / 1000
        rate = total / seconds if seconds > 0 else 0.0
        if not count:
            return Reading(math.nan, math.nan, rate)
        return Reading(total / count, max(one.largest for one in both if one.count), rate)

    def _turn(self, now_ms: int) -> None:
        passed = (now_ms - self._began_ms) // SAMPLE_MS
        if passed > 0:
            self._before = self._now if passed == 1 else _Sample()
            self._now = _Sample()
            self._began_ms += passed * SAMPLE_MS


class _Sample:
    __slots__ = ("count", "largest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.largest = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)


class QuorumMeasures:
    """Measures a replica: the time of commits and elections, and the records it appends and fetches.

    Call :meth:`look` after each event of the replica.
    """

    def __init__(self, core: RaftReplica, now_ms: int) -> None:
        self._end = core.flushed_end
        self._committed = core.high_watermark
        self._open: deque[tuple[Offset, int]] = deque()
        """Appends whose commit is awaited: the offset after them, and when they were made."""
        self._election_ms: int | None = None
        """When the election began that this node has not seen the end of."""
        self.commit_ms = Samples(now_ms)
        self.election_ms = Samples(now_ms)
        self.appended = Samples(now_ms)
        self.fetched = Samples(now_ms)

    def look(self, core: RaftReplica, end_offset: Offset, now_ms: int) -> None:
        role = core.role
        leads = isinstance(role, Leading)
        if end_offset != self._end:
            if end_offset > self._end:
                (self.appended if leads else self.fetched).observe(end_offset - self._end, now_ms)
                if leads and len(self._open) < OPEN_MAX:
                    self._open.append((end_offset, now_ms))
            self._end = end_offset
        if not leads:
            self._open.clear()
        if core.high_watermark != self._committed:
            self._committed = core.high_watermark
            while self._open and self._open[0][0] <= self._committed:
                self.commit_ms.observe(now_ms - self._open.popleft()[1], now_ms)
        if isinstance(role, Electing):
            self._election_ms = now_ms if self._election_ms is None else self._election_ms
        elif self._election_ms is not None and (leads or isinstance(role, Following)):
            self.election_ms.observe(now_ms - self._election_ms, now_ms)
            self._election_ms = None


def state_of(core: RaftReplica) -> str:
    """Return the replica's role, as Kafka's ``current-state`` names it."""
    role = core.role
    if isinstance(role, Leading):
        return "leader"
    if isinstance(role, Electing):
        return "prospective" if role.pre_vote else "candidate"
    if isinstance(role, Resigned):
        return "resigned"
    if not core.is_voter:
        return "observer"
    if isinstance(role, Following) and core.leader != NO_LEADER:
        return "follower"
    return "unattached" if core.election.voted is None else "unattached-voted"
