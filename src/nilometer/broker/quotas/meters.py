"""What clients have used of their quotas.

Invariants, so that clients that invent client ids do not fill the memory: a meter that measures nothing any
more is removed sooner or later, and there are at most ``METERS_MAX``: of more, those that have used the least
of their quotas are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nilometer.quotas.entity import Limit

KEPT = 256
"""Up to this number of meters none is looked for that can be removed."""
METERS_MAX = 10_000
"""The number of users, client ids or addresses that are measured at once for one quota."""


class Meter(Protocol):
    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether the meter measures what a new one would."""
        ...

    def use(self, rate: float, now_ms: int) -> float:
        """Return how much of what ``rate`` allows is used now, as a share: above 1 the client waits."""
        ...


M = TypeVar("M", bound=Meter)


class _Entry(Generic[M]):
    __slots__ = ("meter", "rate")

    def __init__(self, meter: M, rate: float) -> None:
        self.meter = meter
        self.rate = rate
        """The rate that last counted for the meter."""


class Meters(Generic[M]):
    """One meter for all connections that share a limit."""

    def __init__(self, make: Callable[[float, int], M]) -> None:
        """``make(rate, now_ms)`` returns a new meter."""
        self._make = make
        self._entries: dict[tuple[str, str], _Entry[M]] = {}
        self._swept_at = KEPT

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, limit: Limit, now_ms: int) -> M:
        entry = self._entries.get(limit.shared_by)
        if entry is None:
            if len(self._entries) >= self._swept_at:
                self._sweep(now_ms)
            entry = self._entries[limit.shared_by] = _Entry(self._make(limit.rate, now_ms), limit.rate)
        entry.rate = limit.rate
        return entry.meter

    def _sweep(self, now_ms: int) -> None:
        kept = [
            (key, entry)
            for key, entry in self._entries.items()
            if not entry.meter.is_idle(entry.rate, now_ms)
        ]
        if len(kept) >= METERS_MAX:
            kept.sort(key=lambda one: one[1].meter.use(one[1].rate, now_ms))
            kept = kept[METERS_MAX // 2 :]
        self._entries = dict(kept)
        self._swept_at = min(METERS_MAX, max(KEPT, 2 * len(kept)))
