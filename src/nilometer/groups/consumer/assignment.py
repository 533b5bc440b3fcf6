"""The arguments and the result of an assignor.

An assignor is a pure function of members and topics. The same arguments give the same assignment on every
broker, whatever the order of the mappings.

Invariants of every result:
- *every member has an entry*, empty if no partition is left for it;
- *every partition of a subscribed topic has exactly one owner*, and that member is subscribed to the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias
from uuid import UUID

import msgspec

from nilometer.groups.requests import TopicPartitions

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id, without empty sets."""

NO_PARTITIONS: Final[Assignment] = MappingProxyType({})


class MemberSpec(msgspec.Struct, frozen=True):
    """A member as an assignor sees it."""

    subscribed: frozenset[UUID]
    """The ids of the existing topics that the member subscribes to."""
    previous: Assignment = msgspec.field(default_factory=lambda: NO_PARTITIONS)
    """The member's last target assignment, which may have topics that were deleted or are not subscribed to
    any more."""
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Mapping[str, MemberSpec], Mapping[UUID, int]], dict[str, Assignment]]
"""Takes the members by id, and the partition count of each subscribed topic; returns each member's
assignment."""


def subscribers_of(members: Mapping[str, MemberSpec]) -> dict[UUID, list[str]]:
    """Return the members subscribed to each topic; topics and members are sorted."""
    found: dict[UUID, list[str]] = {}
    for member_id in sorted(members):
        for topic_id in members[member_id].subscribed:
            found.setdefault(topic_id, []).append(member_id)
    return {topic_id: found[topic_id] for topic_id in sorted(found)}


def assignment_of(partitions: Iterable[TopicPartitions]) -> Assignment:
    """Convert from the form in requests and records, which may name a topic twice."""
    found: dict[UUID, frozenset[int]] = {}
    for topic in partitions:
        if topic.partitions:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return found


def topic_partitions(assignment: Mapping[UUID, Iterable[int]]) -> tuple[TopicPartitions, ...]:
    """Convert to the form in replies and records, sorted."""
    return tuple(
        TopicPartitions(topic_id, tuple(sorted(assignment[topic_id]))) for topic_id in sorted(assignment)
    )
