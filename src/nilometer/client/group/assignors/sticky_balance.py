"""Assigns partitions evenly while moving as few as possible. Pure.

Three steps: every member keeps its partitions; each partition without an owner goes to the subscribed member
with the fewest; then partitions move, one at a time, from the member with the most to a subscribed member
with at least two fewer.

Invariants of the result:

- no partition could move to a subscribed member that has at least two fewer than its owner;
- with equal subscriptions as many partitions keep their owner as any even assignment allows.

The third step ends because each move decreases the sum of the squares of the members' partition counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from nilometer.client.group.assignors.assignor import Assignments, AssignmentTask, MemberId
from nilometer.client.network.cluster_metadata import TopicPartition


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
