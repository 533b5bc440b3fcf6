"""What an assignor is given and what it gives back.

An assignor is a plain function of members and topics: it knows no group, no epoch and no client. The same
arguments give the same assignment on every broker, in whatever order the mappings are.

Invariants of every result, whatever went in:
- *every member has an entry*, empty if nothing is left for it;
- *every partition of a subscribed topic has exactly one owner*, and that member is subscribed to the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

from nilometer.groups.requests import TopicPartitions

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id, without empty sets."""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as an assignor sees it."""

    subscribed: frozenset[UUID]
    """Topics that exist."""
    previous: Assignment = field(default_factory=lambda: NO_PARTITIONS)
    """Its last target assignment, which may name what is gone or no longer subscribed to."""
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[UUID, int]], dict[str, Assignment]]
"""Of the members by id, and the number of partitions of each subscribed topic."""


def subscribers_of(members: Mapping[str, MemberSpec]) -> dict[UUID, list[str]]:
    """Who is subscribed to each topic; topics and members in order."""
    found: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].subscribed:
            found.setdefault(topic_id, []).append(member_id)
    return {topic_id: found[topic_id] for topic_id in sorted(found)}


def assignment_of(partitions: Iterable[TopicPartitions]) -> Assignment:
    """From the form that requests and records have. A topic may be named twice."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in partitions:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def topic_partitions(assignment: Mapping[UUID, Iterable[int]]) -> tuple[TopicPartitions, ...]:
    """In the form that replies and records have, in order."""
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(assignment[topic_id]))) for topic_id in sorted(assignment)
    )
