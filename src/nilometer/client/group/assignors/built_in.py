"""The built-in assignors, by their names in the group protocol (Kafka's names)."""

from __future__ import annotations

from typing import Final

from nilometer.client.group.assignors.assignor import Assignor
from nilometer.client.group.assignors.range_assignor import RangeAssignor
from nilometer.client.group.assignors.round_robin_assignor import RoundRobinAssignor
from nilometer.client.group.assignors.sticky_assignors import CooperativeStickyAssignor, StickyAssignor

_BUILT_IN: Final[dict[str, type[Assignor]]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "sticky": StickyAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
ASSIGNOR_NAMES: Final = tuple(_BUILT_IN)


def assignor_by_name(name: str) -> Assignor:
    """Return a new assignor of that name. Raises KeyError for an unknown name."""
    return _BUILT_IN[name]()
