"""Dealing partitions out evenly while moving as few as possible. Pure.

Three steps: every member keeps what it owns; partitions without an owner go to the member with the fewest;
then partitions move, one at a time, from the member with the most to one that may take it and has at least
two fewer.

Invariants of the outcome:

- no partition could go to a member that has at least two fewer than the one that has it;
- with equal subscriptions as many partitions stay where they were as any even assignment allows.

Each move makes the sum of the squares of the members' shares smaller, so they come to an end.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from nilometer.client.group.assignors.assignor import Assignments, AssignmentTask, MemberId
from nilometer.client.network.cluster_metadata import TopicPartition


def balanced(task: AssignmentTask, owned: Mapping[MemberId, Sequence[TopicPartition]]) -> Assignments:
    """``owned`` names each partition at most once; what does not exist or is not subscribed to is let go."""
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
        """Partitions that few may have come first: the others can make up for them."""
        left = [partition for partition in self._task.partitions() if partition not in self._kept]
        left.sort(key=lambda partition: (len(self._eligible_members[partition.topic]), partition))
        heaps = {
            topic: sorted(map(self._load, eligible)) for topic, eligible in self._eligible_members.items()
        }
        for partition in left:
            heap = heaps[partition.topic]
            # Shares only grow meanwhile: an entry that is out of date is too small, and goes back in.
            while heap[0] != (now := self._load(heap[0][2])):
                heapq.heapreplace(heap, now)
            member = heap[0][2]
            self.shares[member].append(partition)
            heapq.heapreplace(heap, self._load(member))

    def level(self) -> None:
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        """Move one partition away from the member with the most that can give; False if none can move."""
        for giver in sorted(self.shares, key=lambda member: (-len(self.shares[member]), self._rank[member])):
            topics = {partition.topic for partition in self.shares[giver]}
            eligible = [
                (min(map(self._load, self._eligible_members[topic])), topic) for topic in sorted(topics)
            ]
            if not eligible:
                return False  # the members behind this one have none either
            (load, _, taker), topic = min(eligible)
            if load + 1 < len(self.shares[giver]):
                self._move(giver, taker, topic)
                return True
        return False

    def _move(self, giver: MemberId, taker: MemberId, topic: str) -> None:
        """Rather one that was only just given out than one that the giver had before; else the last."""
        candidates = [partition for partition in self.shares[giver] if partition.topic == topic]
        fresh = [partition for partition in candidates if partition not in self._kept]
        partition = (fresh or sorted(candidates))[-1]
        self.shares[giver].remove(partition)
        self.shares[taker].append(partition)
        self._kept.discard(partition)

    def _load(self, member: MemberId) -> tuple[int, int, MemberId]:
        return (len(self.shares[member]), self._rank[member], member)
