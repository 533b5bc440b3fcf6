"""The interface of an assignor: subscriptions of the members in, assigned partitions per member out.

In the classic protocol the leader of a group, one of its members, assigns the partitions. An assignor is a
pure function of the members' subscriptions and of the topics' partition counts. All members of a group must
support the one that is used, so the built-in ones (:mod:`.built_in`) have the names of Kafka's.

Invariants of every assignor:

- each partition of a topic with subscribers goes to exactly one member that subscribes to it
  (with the cooperative protocol to none, for one rebalance, while it moves to another member);
- the result depends on the arguments alone, not on the order in which the members are given.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from nilometer.client.network.cluster_metadata import TopicPartition

MemberId = str
Assignments = dict[MemberId, list[TopicPartition]]


class RebalanceProtocol(enum.Enum):
    EAGER = 0
    """Members give up all partitions before they join again."""
    COOPERATIVE = 1
    """Members keep their partitions during a rebalance, and give up only those that move (KIP-429)."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """One member's subscription, as the group's leader reads it."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssignmentTask:
    """The input of an assignor."""

    partition_counts: Mapping[str, int]
    """Topics that do not exist are left out."""
    members: Mapping[MemberId, MemberSubscription]

    def ordered_members(self, topic: str | None = None) -> list[MemberId]:
        """Return the members that subscribe to ``topic`` (None: all members).

        Static members come first, by instance id; then the others, by member id.
        """
        wanted = [
            member_id for member_id, member in self.members.items() if topic is None or topic in member.topics
        ]
        return sorted(wanted, key=self._rank)

    def topics(self) -> list[str]:
        """Return the existing topics that at least one member subscribes to, sorted."""
        asked = {topic for member in self.members.values() for topic in member.topics}
        return sorted(topic for topic in asked if self.partition_counts.get(topic, 0) > 0)

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic in self.topics()
            for number in range(self.partition_counts[topic])
        ]

    def _rank(self, member_id: MemberId) -> tuple[bool, str, str]:
        instance_id = self.members[member_id].instance_id
        return (instance_id is None, instance_id or "", member_id)


class Assignor(Protocol):
    @property
    def name(self) -> str:
        """The assignor's name in the group protocol, the same for all members."""
        ...

    @property
    def protocols(self) -> Sequence[RebalanceProtocol]:
        """The rebalance protocols that it supports; the best one last."""
        ...

    def assign(self, task: AssignmentTask) -> Assignments:
        """Return the partitions of each member; every member has an entry, possibly an empty one."""
        ...

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """Return the user data of a member's subscription, or None.

        ``owned`` are the partitions that it owns, or owned last, in ``generation``.
        """
        ...


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """Return the best rebalance protocol that all ``assignors`` support. Raises ValueError if none."""
    common = set(RebalanceProtocol)
    for assignor in assignors:
        common &= set(assignor.protocols)
    if not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ValueError(f"{names} have no rebalance protocol in common")
    return max(common, key=lambda protocol: protocol.value)
