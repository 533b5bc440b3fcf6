"""Metrics of the coordinators on this broker: groups and transactions by state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from nilometer.broker.assembly import CoordinatorParts
from nilometer.metrics import PAUSE, Family, Kind, Measured, Pause

GROUPS = Family(
    "nilometer_groups", Kind.GAUGE, "Consumer groups that this broker coordinates, by state.", ("state",)
)
TRANSACTIONS = Family(
    "nilometer_transactional_ids",
    Kind.GAUGE,
    "Transactional ids that this broker coordinates, by the state of their transaction.",
    ("state",),
)
FAMILIES = (GROUPS, TRANSACTIONS)


class CoordinatorMetrics:
    def __init__(self, parts: CoordinatorParts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Measured | Literal[Pause.PAUSE]]:
        yield from _by_state(GROUPS, self._parts.groups.states())
        yield from _by_state(TRANSACTIONS, self._parts.transactions.states())


def _by_state(
    family: Family, of_shards: Iterable[Iterable[str]]
) -> Iterator[Measured | Literal[Pause.PAUSE]]:
    """Count the states of all shards."""
    counts: Counter[str] = Counter()
    for states in of_shards:
        for state in states:
            counts[state] += 1
            yield PAUSE
    yield Measured(family, [((state,), count) for state, count in sorted(counts.items())])
