"""The ``uniform`` assignor for members whose subscriptions differ.

Shares do not follow from two numbers here: a topic that only two members read loads those two, whatever the
others have. A *chain* is a sequence of members in which each can hand one partition to the next. An
assignment is as even as possible if no chain leads from a member to one with at least two partitions fewer.
The steps:

1. keep all previous partitions that are still allowed; if every partition is assigned then and no such chain
   exists, that is the result;
2. a member with more than an equal share gives up partitions that others could take;
3. each partition without an owner goes to the subscriber with the fewest partitions, to its previous owner if
   that is one of them;
4. hand partitions over along chains, many in one pass, until there is no chain.

A pass is one breadth-first search over members and topics, backwards from the members with the fewest
partitions, and visits each topic once. Every chain reduces the sum of the squares of the members' counts, so
the passes end.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heapreplace
from uuid import UUID

from nilometer.groups.consumer.assignment import Assignment, MemberSpec, subscribers_of


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
