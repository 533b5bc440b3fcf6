"""The simple assignor: every partition is read, every member reads, and as little as possible moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from nilometer.groups.consumer.assignors import MemberSpec
from nilometer.groups.share_group import assign_simply
from nilometer.groups.topics import Assignment
from support.properties import examples

T1, T2, T3 = (UUID(int=number) for number in (1, 2, 3))
MEMBERS = st.dictionaries(
    st.sampled_from("ABCDEFGHIJ"), st.frozensets(st.sampled_from([T1, T2, T3])), min_size=1
)
ALIKE = st.builds(
    dict.fromkeys, st.sets(st.sampled_from("ABCDEFGHIJ"), min_size=1), st.just(frozenset({T1, T2}))
)
ASSIGNABLE = st.dictionaries(
    st.sampled_from([T1, T2, T3]), st.frozensets(st.integers(0, 6), min_size=1), min_size=1
)


def assign(
    members: Mapping[str, frozenset[UUID]],
    assignable: Mapping[UUID, frozenset[int]],
    previous: Mapping[str, Assignment] | None = None,
) -> dict[str, Assignment]:
    before = previous or {}
    specs = {
        member_id: MemberSpec(topics, before.get(member_id, {})) for member_id, topics in members.items()
    }
    return assign_simply(specs, assignable)


def check(
    members: Mapping[str, frozenset[UUID]],
    assignable: Mapping[UUID, frozenset[int]],
    assigned: Mapping[str, Assignment],
) -> None:
    assert assigned.keys() == members.keys()
    counts = Counter(
        (topic_id, partition)
        for mine in assigned.values()
        for topic_id, found in mine.items()
        for partition in found
    )
    for member_id, mine in assigned.items():
        wanted = members[member_id] & assignable.keys()
        assert mine.keys() <= wanted
        assert bool(mine) == bool(wanted), "every member reads something"
        assert all(mine[topic_id] <= assignable[topic_id] for topic_id in mine)
        assert all(mine.values())
    for topic_id, partitions in assignable.items():
        subscribers = sum(topic_id in topics for topics in members.values())
        each = -(-subscribers // len(partitions))
        for partition in partitions:
            assert bool(counts[topic_id, partition]) == bool(subscribers), "every partition is read"
            assert counts[topic_id, partition] <= max(each, 1)


@given(
    members=MEMBERS | ALIKE, assignable=ASSIGNABLE, members_after=MEMBERS | ALIKE, assignable_after=ASSIGNABLE
)
@examples(300)
def test_every_partition_and_every_member_is_served(
    members: dict[str, frozenset[UUID]],
    assignable: dict[UUID, frozenset[int]],
    members_after: dict[str, frozenset[UUID]],
    assignable_after: dict[UUID, frozenset[int]],
) -> None:
    first = assign(members, assignable)
    check(members, assignable, first)
    assert assign(members, assignable, first) == first, "nothing moves without a reason"
    second = assign(members_after, assignable_after, first)
    check(members_after, assignable_after, second)


@given(
    members=st.integers(1, 40), partitions=st.integers(1, 12), leavers=st.sets(st.integers(0, 39), max_size=5)
)
@examples(100)
def test_members_alike_differ_by_one_partition_at_most(
    members: int, partitions: int, leavers: set[int]
) -> None:
    subscribed = {f"m{number}": frozenset({T1}) for number in range(members)}
    assignable = {T1: frozenset(range(partitions))}
    first = assign(subscribed, assignable)
    sizes = [len(mine.get(T1, ())) for mine in first.values()]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == -(-members // partitions) * partitions
    rest = {f"m{number}": frozenset({T1}) for number in range(members) if number not in leavers}
    if rest:
        second = assign(rest, assignable, first)
        check(rest, assignable, second)
        if len(rest) <= partitions and members <= partitions:
            assert all(first[member_id][T1] <= second[member_id][T1] for member_id in rest), "all keep theirs"


def test_a_new_member_takes_only_what_it_needs() -> None:
    members = dict.fromkeys("AB", frozenset({T1}))
    assignable = {T1: frozenset(range(6))}
    before = assign(members, assignable)
    after = assign({**members, "C": frozenset({T1})}, assignable, before)
    assert {member_id: len(mine[T1]) for member_id, mine in after.items()} == {"A": 2, "B": 2, "C": 2}
    assert all(after[member_id][T1] < before[member_id][T1] for member_id in "AB")


def test_the_member_with_more_keeps_the_larger_share() -> None:
    members = dict.fromkeys("AB", frozenset({T1}))
    before = {"A": {T1: frozenset({0})}, "B": {T1: frozenset({1, 2})}}
    assert assign(members, {T1: frozenset(range(3))}, before) == before


def test_partitions_that_may_not_be_assigned_are_taken_away() -> None:
    members = {"A": frozenset({T1, T2})}
    before = {"A": {T1: frozenset({0, 1}), T2: frozenset({0})}}
    assert assign(members, {T1: frozenset({1})}, before) == {"A": {T1: frozenset({1})}}
    assert assign(members, {}, before) == {"A": {}}
