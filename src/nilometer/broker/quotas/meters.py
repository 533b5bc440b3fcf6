"""What clients have used of their quotas.

Invariant: a meter that measures nothing any more is removed sooner or later, so that clients that invent
client ids do not fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nilometer.quotas.limits import Limit

KEPT = 256
"""Up to this number of meters none is looked for that can be removed."""


class Meter(Protocol):
    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether the meter measures what a new one would."""
        ...


M = TypeVar("M", bound=Meter)


class Meters(Generic[M]):
    """One meter for all connections that share a limit."""

    def __init__(self, make: Callable[[float, int], M]) -> None:
        """``make(rate, now_ms)`` returns a new meter."""
        self._make = make
        self._meters: dict[tuple[str, str], M] = {}
        self._swept_at = KEPT

    def __len__(self) -> int:
        return len(self._meters)

    def of(self, limit: Limit, now_ms: int) -> M:
        meter = self._meters.get(limit.shared_by)
        if meter is None:
            if len(self._meters) >= self._swept_at:
                self._sweep(limit.rate, now_ms)
            meter = self._meters[limit.shared_by] = self._make(limit.rate, now_ms)
        return meter

    def _sweep(self, rate: float, now_ms: int) -> None:
        self._meters = {key: meter for key, meter in self._meters.items() if not meter.is_idle(rate, now_ms)}
        self._swept_at = max(KEPT, 2 * len(self._meters))
