"""The simple assignor of share groups (KIP-932): a partition may have several members.

Every partition has a member, and every member a partition of what it subscribes to. With more members than
partitions, each partition has the same number of members, rounded up. Members keep what they have as far as
the numbers allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.groups.consumer.assignors import MemberSpec, subscribers_of
from nilometer.groups.topics import Assignment


class _Partition(NamedTuple):
    topic_id: UUID
    partition: int


def assign_simply(
    members: Mapping[str, MemberSpec], assignable: Mapping[UUID, frozenset[int]]
) -> dict[str, Assignment]:
    """Return each member's assignment.

    ``assignable``: the partitions that may be assigned, by topic. Members with equal subscriptions share all
    partitions; with different ones, the partitions of each topic.
    """
    given: dict[str, dict[UUID, set[int]]] = {member_id: {} for member_id in sorted(members)}
    if len({spec.subscribed for spec in members.values()}) == 1:
        shared = [(sorted(members), sorted(next(iter(members.values())).subscribed))]
    else:
        shared = [(subscribers, [topic_id]) for topic_id, subscribers in subscribers_of(members).items()]
    for subscribers, topic_ids in shared:
        partitions = [
            _Partition(topic_id, partition)
            for topic_id in topic_ids
            for partition in sorted(assignable.get(topic_id, ()))
        ]
        if partitions:
            for member_id, mine in _Sharing(subscribers, partitions, members).result().items():
                for topic_id, partition in mine:
                    given[member_id].setdefault(topic_id, set()).add(partition)
    return {
        member_id: {topic_id: frozenset(mine) for topic_id, mine in topics.items()}
        for member_id, topics in given.items()
    }


class _Sharing:
    """Shares some partitions among members that subscribe to all of them.

    After each step no partition has more members than ``_members_each``; and each member has at most the
    number of partitions in ``_sizes`` for it.
    """

    def __init__(
        self, member_ids: Sequence[str], partitions: Sequence[_Partition], specs: Mapping[str, MemberSpec]
    ) -> None:
        self._members_each = -(-len(member_ids) // len(partitions))
        known = frozenset(partitions)
        self._owned = {member_id: _kept(specs[member_id].previous, known) for member_id in member_ids}
        self._holders: dict[_Partition, set[str]] = {partition: set() for partition in partitions}
        for member_id, mine in self._owned.items():
            for partition in mine:
                self._holders[partition].add(member_id)
        size, larger = divmod(self._members_each * len(partitions), len(member_ids))
        # Those that have most keep the larger shares, so that few partitions move.
        ranked = sorted(member_ids, key=lambda member_id: (-len(self._owned[member_id]), member_id))
        self._sizes = {member_id: size + (rank < larger) for rank, member_id in enumerate(ranked)}

    def result(self) -> dict[str, set[_Partition]]:
        self._take_from_members()
        self._take_from_partitions()
        self._give()
        return self._owned

    def _take_from_members(self) -> None:
        for member_id, mine in self._owned.items():
            excess = len(mine) - self._sizes[member_id]
            if excess > 0:
                ranked = sorted(mine, key=lambda partition: (-len(self._holders[partition]), partition))
                for partition in ranked[:excess]:
                    self._take(member_id, partition)

    def _take_from_partitions(self) -> None:
        for partition, holders in self._holders.items():
            excess = len(holders) - self._members_each
            if excess > 0:
                ranked = sorted(holders, key=lambda member_id: (-len(self._owned[member_id]), member_id))
                for member_id in ranked[:excess]:
                    self._take(member_id, partition)

    def _give(self) -> None:
        """Give each partition to members that have too few, one after the other."""
        waiting = deque(
            member_id for member_id, mine in self._owned.items() if len(mine) < self._sizes[member_id]
        )
        for partition, holders in self._holders.items():
            passed: list[str] = []
            while waiting and len(holders) < self._members_each:
                member_id = waiting.popleft()
                if member_id in holders:
                    passed.append(member_id)
                    continue
                self._owned[member_id].add(partition)
                holders.add(member_id)
                if len(self._owned[member_id]) < self._sizes[member_id]:
                    passed.append(member_id)
            waiting.extend(passed)

    def _take(self, member_id: str, partition: _Partition) -> None:
        self._owned[member_id].remove(partition)
        self._holders[partition].remove(member_id)


def _kept(previous: Assignment, known: Iterable[_Partition]) -> set[_Partition]:
    return {
        _Partition(topic_id, partition)
        for topic_id, partitions in previous.items()
        for partition in partitions
    }.intersection(known)
