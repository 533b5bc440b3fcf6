"""What an assignor is: who wants what in, who gets what out.

In the classic protocol the leader of a group, one of its members, deals out the partitions. An assignor is
a pure function of the members' subscriptions and of how many partitions each topic has; every client of a
group must know the one that is used, so the built-in ones (:mod:`.builtin_assignors`) carry Kafka's names.

Invariants of every assignor:

- each partition of a topic with subscribers goes to exactly one member that subscribes to it
  (with the cooperative protocol to none, for one round, while it changes hands);
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
    """Members give everything up before they join again."""
    COOPERATIVE = 1
    """Members keep what they have, and give up only what the outcome takes from them (KIP-429)."""


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What the leader knows of one member."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AssignmentTask:
    """What is to be dealt out."""

    partition_counts: Mapping[str, int]
    """Topics that do not exist are left out."""
    members: Mapping[MemberId, MemberSubscription]

    def ordered_members(self, topic: str | None = None) -> list[MemberId]:
        """Who subscribes to ``topic`` (all, where none is named): static ones first, by instance id."""
        wanted = [
            member_id for member_id, member in self.members.items() if topic is None or topic in member.topics
        ]
        return sorted(wanted, key=self._rank)

    def topics(self) -> list[str]:
        """Existing topics that at least one member subscribes to, by name."""
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
        """As all members of a group call it."""
        ...

    @property
    def protocols(self) -> Sequence[RebalanceProtocol]:
        """Which it can work with; the best one last."""
        ...

    def assign(self, task: AssignmentTask) -> Assignments:
        """Every member has an entry, be it empty."""
        ...

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        """What a member adds to its subscription: what it owns (or owned last), since which generation."""
        ...


def common_protocol(assignors: Sequence[Assignor]) -> RebalanceProtocol:
    """The best protocol that all of them can work with. Raises ValueError where there is none."""
    common = set(RebalanceProtocol)
    for assignor in assignors:
        common &= set(assignor.protocols)
    if not common:
        names = ", ".join(assignor.name for assignor in assignors)
        raise ValueError(f"{names} have no rebalance protocol in common")
    return max(common, key=lambda protocol: protocol.value)
