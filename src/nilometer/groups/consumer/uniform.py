"""The ``uniform`` assignor: equal numbers of partitions, with as few moves as possible.

If all members are subscribed to the same topics, the usual case, a member's share follows from the numbers of
partitions and members, and is assigned here; else see :mod:`nilometer.groups.consumer.uniform_mixed`.

Invariants, when all subscriptions are equal:
- *balance*: the numbers of partitions of any two members differ by at most one;
- *stickiness*: a member loses only partitions above its share; a balanced assignment does not change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from uuid import UUID

from nilometer.groups.consumer.assignment import Assignment, MemberSpec
from nilometer.groups.consumer.uniform_mixed import assign_mixed

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
