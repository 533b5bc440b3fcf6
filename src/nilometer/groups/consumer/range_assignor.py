"""The ``range`` assignor: neighbouring partitions together, and topics of one shape side by side.

The partitions of each topic are cut into one run per subscriber. Members stand in the same order for every
topic (static members first, by instance id; then the others by member id), so members that subscribe to
several topics of equal size are given the same partition numbers of all of them, which is what joins need.
The first subscribers get the longer runs, of every topic: the price of that promise.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from nilometer.groups.consumer.assignment import Assignment, MemberSpec, subscribers_of


def assign_ranges(members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> dict[str, Assignment]:
    assigned: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in sorted(members)}
    places = {member_id: _place(member_id, spec) for member_id, spec in members.items()}
    for topic_id, subscribers in subscribers_of(members).items():
        subscribers.sort(key=places.__getitem__)
        length, longer = divmod(topics[topic_id], len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + length + (index < longer)
            if end > start:
                assigned[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict[str, Assignment](assigned)


def _place(member_id: str, spec: MemberSpec) -> tuple[int, str]:
    """A static member keeps its place, and so its partitions, under a new member id."""
    return (1, member_id) if spec.instance_id is None else (0, spec.instance_id)
