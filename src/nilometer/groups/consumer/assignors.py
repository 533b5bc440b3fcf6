"""The assignors of the coordinator (KIP-848): ``range`` and ``uniform``.

``range`` gives consecutive partitions, and the same partition numbers of topics of equal size. ``uniform``
gives equal numbers of partitions, with as few moves as possible, also to members whose subscriptions differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Final, TypeAlias
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


_Owned: TypeAlias = dict[UUID, set[int]]

EFFORT_MAX: Final = 10_000_000
"""So many subscriptions and owners of topics are looked at to make an assignment more even: a few seconds.
Then it stays as it is, valid and nearly even."""


def assign_uniformly(members: Mapping[str, MemberSpec], topics: Mapping[UUID, int]) -> dict[str, Assignment]:
    """Return an assignment in which no member has two partitions more than one to which it could hand one,
    itself or through others; nearly so, if that takes more than ``EFFORT_MAX``.

    Members with the same subscription are of one *kind*. The partitions of each topic are shared out to
    kinds as numbers first, and then as partitions to the members of each kind.
    """
    kinds: dict[frozenset[UUID], list[str]] = {}
    for member_id in sorted(members):
        kinds.setdefault(members[member_id].subscribed, []).append(member_id)
    topic_ids = sorted(frozenset[UUID]().union(*kinds))
    unassigned = {topic_id: set(range(topics[topic_id])) for topic_id in topic_ids}
    owned = {member_id: _still_owned(members[member_id], unassigned) for member_id in sorted(members)}
    shares = _Shares([len(alike) for alike in kinds.values()], list(kinds), topic_ids)
    for kind, alike in enumerate(kinds.values()):
        for member_id in alike:
            shares.keep(kind, owned[member_id])
    kept = [shares.of(kind) for kind in range(len(kinds))]
    shares.share_out(unassigned)
    shares.level()
    for kind, alike in enumerate(kinds.values()):
        _release([owned[each] for each in alike], unassigned, kept[kind], shares.of(kind))
    waiting = {topic_id: iter(sorted(partitions)) for topic_id, partitions in unassigned.items()}
    for kind, alike in enumerate(kinds.values()):
        given = {
            topic_id: list(islice(waiting[topic_id], max(0, count - kept[kind].get(topic_id, 0))))
            for topic_id, count in shares.of(kind).items()
        }
        _assign_alike([owned[each] for each in alike], given)
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in each.items() if partitions}
        for member_id, each in owned.items()
    }


def _still_owned(spec: MemberSpec, unassigned: _Owned) -> _Owned:
    """Return the member's previous partitions that it may keep and that are in ``unassigned``, and remove
    them there."""
    kept: _Owned = {}
    for topic_id in sorted(spec.subscribed.intersection(spec.previous)):
        mine = unassigned[topic_id].intersection(spec.previous[topic_id])
        if mine:
            unassigned[topic_id] -= mine
            kept[topic_id] = mine
    return kept


def _release(
    members: Sequence[_Owned], unassigned: _Owned, kept: Mapping[UUID, int], share: Mapping[UUID, int]
) -> None:
    """Take what the members of a kind own above its share of a topic; of those with the most partitions."""
    surplus = {topic_id: count - share.get(topic_id, 0) for topic_id, count in kept.items()}
    counts = [sum(map(len, owned.values())) for owned in members]
    for topic_id in (topic_id for topic_id, count in surplus.items() if count > 0):
        partitions = {
            number: sorted(owned[topic_id]) for number, owned in enumerate(members) if topic_id in owned
        }
        most = [(-counts[number], number) for number in partitions]
        heapify(most)
        free = unassigned[topic_id]
        for _ in range(surplus[topic_id]):
            number = most[0][1]
            free.add(partitions[number].pop())
            counts[number] -= 1
            if partitions[number]:
                heapreplace(most, (-counts[number], number))
            else:
                heappop(most)
        for number, left in partitions.items():
            members[number][topic_id] = set(left)


def _assign_alike(members: Sequence[_Owned], unassigned: Mapping[UUID, Collection[int]]) -> None:
    """Give members of one kind equal numbers of what they own and of what is unassigned."""
    counts = [sum(map(len, owned.values())) for owned in members]
    total = sum(counts) + sum(map(len, unassigned.values()))
    share, larger_shares = divmod(total, len(members))
    waiting = {topic_id: list(partitions) for topic_id, partitions in unassigned.items()}

    # A member with more than the share may keep one more than it, as long as there are larger shares left.
    # Members with the most partitions come first, so that none of them gives a partition to another.
    for number in sorted(range(len(members)), key=lambda number: -counts[number]):
        excess = counts[number] - share
        if excess > 0 and larger_shares:
            larger_shares -= 1
            excess -= 1
        for topic_id, partition in _to_give_up(members[number], excess):
            members[number][topic_id].remove(partition)
            waiting.setdefault(topic_id, []).append(partition)
            counts[number] -= 1

    # Fill every member up to the share first; then give one more to as many as there are larger shares.
    takers = deque(
        (owned, share - count) for owned, count in zip(members, counts, strict=True) if count < share
    )
    larger = deque(
        [owned for owned, count in zip(members, counts, strict=True) if count <= share][:larger_shares]
    )
    for topic_id in sorted(waiting):
        for partition in sorted(waiting[topic_id]):
            if takers:
                owned, wanted = takers.popleft()
                if wanted > 1:
                    takers.append((owned, wanted - 1))
            else:
                owned = larger.popleft()
            owned.setdefault(topic_id, set()).add(partition)


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


class _Shares:
    """How many partitions of each topic the members of each kind own together. Kinds and topics are numbers
    here.

    A kind is above a *level* if its members have more than so many partitions each. Partitions are handed
    over along chains: from a kind that owns some of a topic to a subscriber of it, which hands as many of
    another topic on.
    """

    def __init__(
        self, sizes: Sequence[int], subscriptions: Sequence[Iterable[UUID]], topic_ids: Sequence[UUID]
    ) -> None:
        self._sizes, self._topic_ids = sizes, topic_ids
        self._numbers = {topic_id: topic for topic, topic_id in enumerate(topic_ids)}
        self._subscribed = [sorted(map(self._numbers.__getitem__, each)) for each in subscriptions]
        """By kind, its topics."""
        self._subscribers: list[list[int]] = [[] for _ in topic_ids]
        """By topic, the kinds."""
        for kind, subscribed in enumerate(self._subscribed):
            for topic in subscribed:
                self._subscribers[topic].append(kind)
        self._owned: list[dict[int, int]] = [{} for _ in sizes]
        """By kind, the topics of which it owns partitions, and how many."""
        self._owners: list[dict[int, None]] = [{} for _ in topic_ids]
        """By topic, the kinds that own partitions of it."""
        self._totals = [0 for _ in sizes]
        self._effort = 0

    def of(self, kind: int) -> dict[UUID, int]:
        """Return how many partitions of which topics are the kind's."""
        return {self._topic_ids[topic]: count for topic, count in sorted(self._owned[kind].items())}

    def keep(self, kind: int, owned: _Owned) -> None:
        for topic_id, partitions in owned.items():
            self._add(kind, self._numbers[topic_id], len(partitions))

    def share_out(self, unassigned: _Owned) -> None:
        """Add each partition to the kind whose members have the fewest. Topics with the fewest subscribers,
        and so the least choice, come first."""
        for topic in sorted(range(len(self._topic_ids)), key=self._subscribing_members):
            least = [(self._totals[kind] // self._sizes[kind], kind) for kind in self._subscribers[topic]]
            heapify(least)
            for _ in unassigned[self._topic_ids[topic]]:
                kind = least[0][1]
                self._add(kind, topic, 1)
                heapreplace(least, (self._totals[kind] // self._sizes[kind], kind))

    def _subscribing_members(self, topic: int) -> int:
        return sum(self._sizes[kind] for kind in self._subscribers[topic])

    def level(self) -> None:
        """Hand over until no chain makes the numbers of members more even.

        First those above a level hand to those below it. Of what can be reached from those that are still
        above it, all have the level at least, and hand nothing to the rest, which has the level at most: each
        of the two parts gets a level of its own.
        """
        parts = deque([[kind for kind, subscribed in enumerate(self._subscribed) if subscribed]])
        while parts and self._may_go_on():
            part = parts.popleft()
            level = self._level_of(part)
            if level is not None:
                while self._hand_over(part, level) and self._may_go_on():
                    pass
                reached = self._reached_from_above(part, level)
                parts.append([kind for kind in part if kind in reached])
                parts.append([kind for kind in part if kind not in reached])

    def _may_go_on(self) -> bool:
        return self._effort < EFFORT_MAX

    def _level_of(self, part: Sequence[int]) -> int | None:
        """Return a level between the fewest and the most partitions of a member, near the average; None if
        these differ by less than two."""
        self._effort += len(part)
        if len(part) < 2:
            return None
        fewest = min(self._totals[kind] // self._sizes[kind] for kind in part)
        most = max(-(-self._totals[kind] // self._sizes[kind]) for kind in part)
        average = sum(self._totals[kind] for kind in part) // sum(self._sizes[kind] for kind in part)
        return None if most - fewest < 2 else min(max(average, fewest + 1), most - 1)

    def _above(self, kind: int, level: int) -> int:
        """Return how many partitions the kind has above the level; less than 0: below it."""
        return self._totals[kind] - self._sizes[kind] * level

    def _hand_over(self, part: Sequence[int], level: int) -> bool:
        """Hand over along the shortest chains from kinds above the level to those below it: as many
        partitions at once as that takes and the chain has (a round of Dinic's algorithm). Return false if
        there is no chain."""
        distances, topics = self._distances(part, level)
        givers = [kind for kind in distances if self._above(kind, level) > 0]
        ways = _Ways(distances, topics, self._owned, self._subscribers)
        for giver in givers:
            while (count := self._above(giver, level)) > 0 and self._may_go_on():
                chain = ways.find(giver, lambda kind: self._above(kind, level) < 0)
                if not chain:
                    break
                self._effort += len(chain)
                receiver = chain[-1][2]
                available = min(self._owned[kind][topic] for kind, topic, _ in chain)
                count = min(count, -self._above(receiver, level), available)
                for kind, topic, to in chain:
                    self._add(kind, topic, -count)
                    self._add(to, topic, count)
        return bool(givers)

    def _distances(self, part: Sequence[int], level: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return how many times what a kind hands over is handed on until it comes below the level: 1 for
        those that hand to such a kind; and by topic the distance of the nearest subscriber."""
        inside = frozenset(part)
        distances = {kind: 0 for kind in part if self._above(kind, level) < 0}
        topics: dict[int, int] = {}
        reached = list(distances)
        for receiver in reached:
            self._effort += len(self._subscribed[receiver])
            for topic in self._subscribed[receiver]:
                if topic not in topics:
                    topics[topic] = distances[receiver]
                    self._effort += len(self._owners[topic])
                    for giver in self._owners[topic]:
                        if giver in inside and giver not in distances:
                            distances[giver] = distances[receiver] + 1
                            reached.append(giver)
        return distances, topics

    def _reached_from_above(self, part: Sequence[int], level: int) -> set[int]:
        inside = frozenset(part)
        reached = [kind for kind in part if self._above(kind, level) > 0]
        kinds, topics = set(reached), set[int]()
        for giver in reached:
            self._effort += len(self._owned[giver])
            for topic in self._owned[giver]:
                if topic not in topics:
                    topics.add(topic)
                    self._effort += len(self._subscribers[topic])
                    found = [
                        each for each in self._subscribers[topic] if each in inside and each not in kinds
                    ]
                    kinds.update(found)
                    reached.extend(found)
        return kinds

    def _add(self, kind: int, topic: int, count: int) -> None:
        owned = self._owned[kind]
        owned[topic] = owned.get(topic, 0) + count
        self._owners[topic][kind] = None
        if not owned[topic]:
            del owned[topic], self._owners[topic][kind]
        self._totals[kind] += count


class _Ways:
    """Finds the shortest chains of one round. What has led nowhere is not tried again."""

    def __init__(
        self,
        distances: Mapping[int, int],
        topics: Mapping[int, int],
        owned: Sequence[Mapping[int, int]],
        subscribers: Sequence[Sequence[int]],
    ) -> None:
        self._distances, self._topics = distances, topics
        self._owned, self._subscribers = owned, subscribers
        self._topics_left: dict[int, list[int]] = {}
        """By giver; the last one is tried next."""
        self._receivers_left: dict[int, list[int]] = {}
        """By topic."""

    def find(self, giver: int, takes: Callable[[int], bool]) -> list[tuple[int, int, int]]:
        """Return a chain of hand-overs (giver, topic, receiver) from ``giver`` to a kind that takes some;
        empty if there is none."""
        chain: list[tuple[int, int, int]] = []
        while True:
            kind = chain[-1][2] if chain else giver
            if self._distances[kind]:
                topic = self._next_topic(kind)
            elif takes(kind):
                return chain
            else:
                topic = None
            if topic is not None:
                chain.append((kind, topic, self._receivers(topic)[-1]))
            elif chain:
                self._receivers(chain.pop()[1]).pop()
            else:
                return chain

    def _next_topic(self, kind: int) -> int | None:
        """Return a topic of which the kind owns partitions, and a subscriber is one hand-over nearer."""
        left = self._topics_left.get(kind)
        if left is None:
            nearer = self._distances[kind] - 1
            left = [topic for topic in self._owned[kind] if self._topics.get(topic) == nearer]
            self._topics_left[kind] = left = left[::-1]
        while left and not (left[-1] in self._owned[kind] and self._receivers(left[-1])):
            left.pop()
        return left[-1] if left else None

    def _receivers(self, topic: int) -> list[int]:
        left = self._receivers_left.get(topic)
        if left is None:
            nearest = self._topics[topic]
            left = [kind for kind in self._subscribers[topic] if self._distances.get(kind) == nearest]
            self._receivers_left[topic] = left = left[::-1]
        return left
