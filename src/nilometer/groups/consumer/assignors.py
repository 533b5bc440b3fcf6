"""The assignors of the coordinator (KIP-848): ``range`` and ``uniform``.

``range`` gives consecutive partitions, and the same partition numbers of topics of equal size. ``uniform``
gives equal numbers of partitions, with as few moves as possible, also to members whose subscriptions differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace
from typing import TypeAlias
from uuid import UUID

import msgspec

from nilometer.groups.topics import NO_PARTITIONS, Assignment


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


def assign_mixed(members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> dict[str, Assignment]:
    return _MixedAssignment(members, topics).result()


class _MixedAssignment:
    """Computes one assignment. Every partition has at most one owner at any time."""

    def __init__(self, members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> None:
        self._members = members
        self._subscribers = subscribers_of(members)
        self._owned: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in sorted(members)}
        self._counts = dict.fromkeys(self._owned, 0)
        self._owners: dict[UUID, dict[str, None]] = {topic_id: {} for topic_id in self._subscribers}
        """The members that own partitions of each topic, in order of insertion."""
        self._previous: dict[tuple[UUID, int], str] = {}
        self._unassigned = {topic_id: set(range(topics[topic_id])) for topic_id in self._subscribers}
        self._partitions_count = sum(map(len, self._unassigned.values()))

    def result(self) -> dict[str, Assignment]:
        self._keep_what_is_allowed()
        if any(self._unassigned.values()) or self._chains():
            self._release_excess()
            self._assign_the_rest()
            while chains := self._chains():
                self._hand_over(chains)
        return {
            member_id: {
                topic_id: frozenset(partitions) for topic_id, partitions in owned.items() if partitions
            }
            for member_id, owned in self._owned.items()
        }

    def _keep_what_is_allowed(self) -> None:
        """Assign each previous partition that exists, and is still subscribed to, to its previous owner."""
        for member_id in self._owned:
            spec = self._members[member_id]
            for topic_id in sorted(spec.previous):
                if topic_id in spec.subscribed:
                    for partition in sorted(self._unassigned[topic_id].intersection(spec.previous[topic_id])):
                        self._previous[topic_id, partition] = member_id
                        self._give(member_id, topic_id, partition)

    def _release_excess(self) -> None:
        """Take partitions above an equal share, rounded up, from members if others could own them."""
        share = -(-self._partitions_count // len(self._owned))
        for member_id, owned in self._owned.items():
            for topic_id in sorted(owned):
                excess = self._counts[member_id] - share
                if excess > 0 and len(self._subscribers[topic_id]) > 1:
                    for partition in sorted(owned[topic_id])[-excess:]:
                        self._take(member_id, topic_id, partition)

    def _assign_the_rest(self) -> None:
        """Assign the partitions without an owner; topics with the fewest subscribers, and so the least
        choice, come first."""
        for topic_id in sorted(
            self._unassigned, key=lambda topic_id: (len(self._subscribers[topic_id]), topic_id)
        ):
            waiting = sorted(self._unassigned[topic_id])
            if not waiting:
                continue
            least = [(self._counts[member_id], member_id) for member_id in self._subscribers[topic_id]]
            heapify(least)
            stale: set[str] = set()
            for partition in waiting:
                while least[0][1] in stale:
                    member_id = least[0][1]
                    stale.discard(member_id)
                    heapreplace(least, (self._counts[member_id], member_id))
                count, member_id = least[0]
                previous = self._previous.get((topic_id, partition))
                if previous is not None and self._counts[previous] == count:
                    member_id = previous
                self._give(member_id, topic_id, partition)
                stale.add(member_id)

    def _chains(self) -> dict[str, tuple[UUID, str]]:
        """Return the steps of the chains: by member, the topic of the partition to hand over, and the
        receiver.

        A receiver that hands a partition over has its own step. Empty if no chain leads to a member with at
        least two partitions fewer.
        """
        steps: dict[str, tuple[UUID, str]] = {}
        reached: set[str] = set()
        seen_topics: set[UUID] = set()
        worthwhile = False
        for target in sorted(self._counts, key=lambda member_id: (self._counts[member_id], member_id)):
            if target in reached:
                continue
            reached.add(target)
            enough = self._counts[target] + 2
            frontier = [target]
            for receiver in frontier:
                for topic_id in sorted(self._members[receiver].subscribed - seen_topics):
                    seen_topics.add(topic_id)
                    for giver in self._owners[topic_id]:
                        if giver not in reached:
                            reached.add(giver)
                            steps[giver] = (topic_id, receiver)
                            frontier.append(giver)
                            worthwhile = worthwhile or self._counts[giver] >= enough
        return steps if worthwhile else {}

    def _hand_over(self, steps: dict[str, tuple[UUID, str]]) -> None:
        """Hand partitions over along each chain between members whose counts differ by two or more.

        Members with the most partitions come first; no member takes part in two chains.
        """
        touched: set[str] = set()
        before = dict(self._counts)
        for giver in sorted(steps, key=lambda member_id: (-before[member_id], member_id)):
            chain = [giver]
            while chain[-1] in steps:
                chain.append(steps[chain[-1]][1])
            if before[giver] - before[chain[-1]] < 2 or not touched.isdisjoint(chain):
                continue
            touched.update(chain)
            for member_id in chain[:-1]:
                topic_id, receiver = steps[member_id]
                partition = self._choice(member_id, topic_id, receiver)
                self._take(member_id, topic_id, partition)
                self._give(receiver, topic_id, partition)

    def _choice(self, giver: str, topic_id: UUID, receiver: str) -> int:
        """Return the partition that ``giver`` hands to ``receiver``: one that the receiver owned before, else
        one that the giver did not own before, else any."""

        def preference(partition: int) -> tuple[int, int]:
            previous = self._previous.get((topic_id, partition))
            return (0 if previous == receiver else 2 if previous == giver else 1), -partition

        return min(self._owned[giver][topic_id], key=preference)

    def _give(self, member_id: str, topic_id: UUID, partition: int) -> None:
        self._unassigned[topic_id].discard(partition)
        self._owned[member_id].setdefault(topic_id, set()).add(partition)
        self._owners[topic_id][member_id] = None
        self._counts[member_id] += 1

    def _take(self, member_id: str, topic_id: UUID, partition: int) -> None:
        partitions = self._owned[member_id][topic_id]
        partitions.remove(partition)
        if not partitions:
            del self._owned[member_id][topic_id]
            del self._owners[topic_id][member_id]
        self._unassigned[topic_id].add(partition)
        self._counts[member_id] -= 1


_Owned = dict[UUID, set[int]]


def assign_uniformly(members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> dict[str, Assignment]:
    if not members:
        return {}
    subscriptions = {spec.subscribed for spec in members.values()}
    if len(subscriptions) > 1:
        return assign_mixed(members, topics)
    (subscribed,) = subscriptions
    return _assign_alike(members, {topic_id: topics[topic_id] for topic_id in sorted(subscribed)})


def _assign_alike(members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> dict[str, Assignment]:
    member_ids = sorted(members)
    share, larger_shares = divmod(sum(topics.values()), len(member_ids))
    unassigned = {topic_id: set(range(count)) for topic_id, count in topics.items()}
    owned = {member_id: _still_owned(members[member_id], unassigned) for member_id in member_ids}
    counts = {member_id: sum(map(len, owned[member_id].values())) for member_id in member_ids}

    # A member with more than the share may keep one more than it, as long as there are larger shares left.
    # Members with the most partitions come first, so that none of them gives a partition to another.
    for member_id in sorted(member_ids, key=lambda member_id: -counts[member_id]):
        excess = counts[member_id] - share
        if excess > 0 and larger_shares:
            larger_shares -= 1
            excess -= 1
        for topic_id, partition in _to_give_up(owned[member_id], excess):
            owned[member_id][topic_id].remove(partition)
            unassigned[topic_id].add(partition)
            counts[member_id] -= 1

    # Fill every member up to the share first; then give one more to as many as there are larger shares.
    takers = deque(
        (member_id, share - counts[member_id]) for member_id in member_ids if counts[member_id] < share
    )
    larger = deque([member_id for member_id in member_ids if counts[member_id] <= share][:larger_shares])
    for topic_id, partitions in unassigned.items():
        for partition in sorted(partitions):
            if takers:
                member_id, wanted = takers.popleft()
                if wanted > 1:
                    takers.append((member_id, wanted - 1))
            else:
                member_id = larger.popleft()
            owned[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {
            topic_id: frozenset(partitions) for topic_id, partitions in owned[member_id].items() if partitions
        }
        for member_id in member_ids
    }


def _still_owned(spec: MemberSpec, unassigned: _Owned) -> _Owned:
    """Return the member's previous partitions that exist and are in ``unassigned``, and remove them there."""
    kept: _Owned = {}
    for topic_id, partitions in spec.previous.items():
        free = unassigned.get(topic_id)
        if free is None:
            continue
        mine = free.intersection(partitions)
        if mine:
            free -= mine
            kept[topic_id] = mine
    return kept


def _to_give_up(owned: _Owned, count: int) -> list[tuple[UUID, int]]:
    """Return ``count`` owned partitions to give up, from every topic in proportion, so that no member is left
    with the partitions of one topic alone."""
    if count <= 0:
        return []
    ranked: list[tuple[float, UUID, int]] = []
    for topic_id, partitions in owned.items():
        size = len(partitions)
        ranked.extend(
            ((2 * rank + 1) / (2 * size), topic_id, partition)
            for rank, partition in enumerate(sorted(partitions))
        )
    ranked.sort()
    return [(topic_id, partition) for _, topic_id, partition in ranked[-count:]]
