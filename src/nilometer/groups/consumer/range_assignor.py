"""The ``range`` assignor: consecutive partitions, and the same partition numbers of topics of equal size.

The partitions of each topic are cut into one range per subscriber. Members have the same order for every
topic (static members first, by instance id; then the others by member id). So members that subscribe to
several topics of equal size get the same partition numbers of all of them, as joins of topics need. In return
the first subscribers get the longer ranges of every topic.
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
    """Return the sort key of a member; a static member keeps its place, and so its partitions, with a new
    member id."""
    return (1, member_id) if spec.instance_id is None else (0, spec.instance_id)
