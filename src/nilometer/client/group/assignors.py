"""Assignors, which assign partitions to the members of a group: the interface and the built-in ones. Pure."""

from __future__ import annotations

import enum
import heapq
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import NO_GENERATION, decode_assignment, encode_assignment
from nilometer.wire.value_bytes import Assignment as WireAssignment

# The interface of an assignor: subscriptions of the members in, assigned partitions per member out.
#
# In the classic protocol the leader of a group, one of its members, assigns the partitions. An assignor is a
# pure function of the members' subscriptions and of the topics' partition counts. All members of a group must
# support the one that is used, so the built-in ones (``ASSIGNOR_NAMES``) have the names of Kafka's.
#
# Invariants of every assignor:
#
# - each partition of a topic with subscribers goes to exactly one member that subscribes to it
#   (with the cooperative protocol to none, for one rebalance, while it moves to another member);
# - the result depends on the arguments alone, not on the order in which the members are given.

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


# ``range``: divides the partitions of each topic, in order, into one contiguous range per member. Pure.
#
# If a topic does not divide evenly, the first members get one partition more. Members with equal
# subscriptions get the same partition indexes of topics with equal partition counts, so that records with the
# same key are read by the same member.


class RangeAssignor:
    name = "range"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        found: Assignments = {member: [] for member in task.ordered_members()}
        for topic in task.topics():
            members = task.ordered_members(topic)
            each, more = divmod(task.partition_counts[topic], len(members))
            begin = 0
            for index, member in enumerate(members):
                end = begin + each + (index < more)
                found[member] += [TopicPartition(topic, number) for number in range(begin, end)]
                begin = end
        return found

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None


# ``roundrobin``: assigns the partitions of all topics to the members in turn. Pure.
#
# A member that does not subscribe to a partition's topic is skipped; the next partition goes to the member
# after the one that got the last. With equal subscriptions no two members differ by more than one partition.


class RoundRobinAssignor:
    name = "roundrobin"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        members = task.ordered_members()
        found: Assignments = {member: [] for member in members}
        turn = 0
        for partition in task.partitions():
            while partition.topic not in task.members[members[turn]].topics:
                turn = (turn + 1) % len(members)
            found[members[turn]].append(partition)
            turn = (turn + 1) % len(members)
        return found

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return None


# Assigns partitions evenly while moving as few as possible. Pure.
#
# Three steps: every member keeps its partitions; each partition without an owner goes to the subscribed
# member with the fewest; then partitions move, one at a time, from the member with the most to a subscribed
# member with at least two fewer.
#
# Invariants of the result:
#
# - no partition could move to a subscribed member that has at least two fewer than its owner;
# - with equal subscriptions as many partitions keep their owner as any even assignment allows.
#
# The third step ends because each move decreases the sum of the squares of the members' partition counts.


def balanced(task: AssignmentTask, owned: Mapping[MemberId, Sequence[TopicPartition]]) -> Assignments:
    """Return the balanced assignment, given the partitions that each member owns now.

    ``owned`` contains each partition at most once; partitions that do not exist, or whose topic the member
    does not subscribe to, are taken from it.
    """
    balance = _Balance(task)
    for member, partitions in owned.items():
        balance.keep(member, partitions)
    balance.assign_unowned()
    balance.level()
    return {member: sorted(partitions) for member, partitions in balance.shares.items()}


class _Balance:
    def __init__(self, task: AssignmentTask) -> None:
        self._task = task
        members = task.ordered_members()
        self._rank = {member: rank for rank, member in enumerate(members)}
        self.shares: Assignments = {member: [] for member in members}
        self._eligible_members = {topic: task.ordered_members(topic) for topic in task.topics()}
        self._kept: set[TopicPartition] = set()

    def keep(self, member: MemberId, partitions: Sequence[TopicPartition]) -> None:
        topics = self._task.members[member].topics
        for topic, number in partitions:
            if topic in topics and number < self._task.partition_counts.get(topic, 0):
                partition = TopicPartition(topic, number)
                self.shares[member].append(partition)
                self._kept.add(partition)

    def assign_unowned(self) -> None:
        """Assign each partition without an owner to the subscribed member with the fewest partitions.

        Partitions with the fewest subscribers come first: the others can then make the result even.
        """
        left = [partition for partition in self._task.partitions() if partition not in self._kept]
        left.sort(key=lambda partition: (len(self._eligible_members[partition.topic]), partition))
        heaps = {
            topic: sorted(map(self._load, eligible)) for topic, eligible in self._eligible_members.items()
        }
        for partition in left:
            heap = heaps[partition.topic]
            # Shares only grow in this loop, so an outdated entry is too small: replace it by the current one.
            while heap[0] != (now := self._load(heap[0][2])):
                heapq.heapreplace(heap, now)
            member = heap[0][2]
            self.shares[member].append(partition)
            heapq.heapreplace(heap, self._load(member))

    def level(self) -> None:
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        """Move one partition from the member with the most that can give one; return False if none can."""
        for giver in sorted(self.shares, key=lambda member: (-len(self.shares[member]), self._rank[member])):
            topics = {partition.topic for partition in self.shares[giver]}
            eligible = [
                (min(map(self._load, self._eligible_members[topic])), topic) for topic in sorted(topics)
            ]
            if not eligible:
                return False  # the members after this one have no partitions either
            (load, _, taker), topic = min(eligible)
            if load + 1 < len(self.shares[giver]):
                self._move(giver, taker, topic)
                return True
        return False

    def _move(self, giver: MemberId, taker: MemberId, topic: str) -> None:
        """Move one partition of ``topic``: one that ``giver`` did not own before, else its last one."""
        candidates = [partition for partition in self.shares[giver] if partition.topic == topic]
        fresh = [partition for partition in candidates if partition not in self._kept]
        partition = (fresh or sorted(candidates))[-1]
        self.shares[giver].remove(partition)
        self.shares[taker].append(partition)
        self._kept.discard(partition)

    def _load(self, member: MemberId) -> tuple[int, int, MemberId]:
        return (len(self.shares[member]), self._rank[member], member)


# ``sticky`` and ``cooperative-sticky``: an even assignment that moves as few partitions as possible. Pure.
#
# The eager one reads the members' previous
# partitions from their user data, since they own none during a rebalance; the cooperative one reads them from
# the subscriptions, and assigns no partition that another member still owns: the next rebalance does
# (KIP-429).

_GENERATION = struct.Struct(">i")
_VERSION_BYTES = 2
_EMPTY_USER_DATA_BYTES = 4

OwnedClaim = tuple[int, Sequence[TopicPartition]]
"""A generation, and the partitions that a member owned in it."""


class StickyAssignor:
    name = "sticky"
    protocols = (RebalanceProtocol.EAGER,)

    def assign(self, task: AssignmentTask) -> Assignments:
        claims = {member: read_claim(said.user_data) for member, said in task.members.items()}
        return balanced(task, settle_claims(claims))

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return write_claim((generation, owned)) if owned or generation != NO_GENERATION else None


class CooperativeStickyAssignor:
    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE)

    def assign(self, task: AssignmentTask) -> Assignments:
        claims = {member: (_generation(said), said.owned) for member, said in task.members.items()}
        target = balanced(task, settle_claims(claims))
        held = {partition for said in task.members.values() for partition in said.owned}
        return {
            member: [
                partition
                for partition in partitions
                if partition not in held or partition in task.members[member].owned
            ]
            for member, partitions in target.items()
        }

    def user_data(self, owned: Sequence[TopicPartition], generation: int) -> bytes | None:
        return _GENERATION.pack(generation)


def _generation(said: MemberSubscription) -> int:
    """Return the generation of a member's owned partitions; older clients send it only in the user data."""
    if said.generation == NO_GENERATION and said.user_data and len(said.user_data) >= _GENERATION.size:
        return int(_GENERATION.unpack_from(said.user_data)[0])
    return said.generation


def settle_claims(claims: Mapping[MemberId, OwnedClaim]) -> dict[MemberId, list[TopicPartition]]:
    """Return the partitions that each member is regarded as owning.

    If several members claim a partition, the one with the newest generation owns it; if several have that
    generation, none does.
    """
    newest: dict[TopicPartition, tuple[int, MemberId | None]] = {}
    for member in sorted(claims):
        generation, partitions = claims[member]
        for partition in dict.fromkeys(partitions):
            known, _ = newest.get(partition, (generation - 1, None))
            if generation > known:
                newest[partition] = (generation, member)
            elif generation == known:
                newest[partition] = (generation, None)
    owned: dict[MemberId, list[TopicPartition]] = {member: [] for member in claims}
    for partition, (_, owner) in newest.items():
        if owner is not None:
            owned[owner].append(partition)
    return owned


def write_claim(claim: OwnedClaim) -> bytes:
    """Encode the user data of the eager sticky assignor: partitions by topic, then the generation."""
    generation, partitions = claim
    encoded = encode_assignment(WireAssignment(tuple(partitions)))
    return encoded[_VERSION_BYTES:-_EMPTY_USER_DATA_BYTES] + _GENERATION.pack(generation)


def read_claim(user_data: bytes | None) -> OwnedClaim:
    """Decode the user data of the eager sticky assignor.

    Malformed data is an empty claim: one member must not be able to stop its group.
    """
    if not user_data:
        return NO_GENERATION, ()
    for trailer in (_GENERATION.size, 0):  # before 2.1 there was no generation
        body, rest = user_data[: len(user_data) - trailer], user_data[len(user_data) - trailer :]
        try:
            found = decode_assignment(b"\0\0" + body + b"\xff\xff\xff\xff")
        except MalformedMessage:
            continue
        generation = int(_GENERATION.unpack(rest)[0]) if trailer else NO_GENERATION
        return generation, [TopicPartition(topic, number) for topic, number in found.partitions]
    return NO_GENERATION, ()


# The built-in assignors, by their names in the group protocol (Kafka's names).

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
