"""Whether an assignment could be more even, found out the slow way."""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.groups.consumer.assignors import MemberSpec
from nilometer.groups.topics import Assignment


def count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


def improvable(
    members: Mapping[str, MemberSpec], assigned: Mapping[str, Assignment]
) -> tuple[str, str] | None:
    """A member from which a chain of hand-overs leads to one with at least two fewer."""
    counts = {member_id: count(assignment) for member_id, assignment in assigned.items()}
    for start in members:
        reached = [start]
        for giver in reached:
            for topic_id in assigned[giver]:
                for receiver, spec in members.items():
                    if topic_id in spec.subscribed and receiver not in reached:
                        reached.append(receiver)
                        if counts[start] - counts[receiver] >= 2:
                            return start, receiver
    return None
