"""Properties of the server-side assignors: valid, even, sticky, the same for every order of members."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from assignment_checks import count, improvable
from hypothesis import given
from hypothesis import strategies as st

from nilometer.groups.consumer import assignors
from nilometer.groups.consumer.assignors import Assignor, MemberSpec, assign_ranges, assign_uniformly
from nilometer.groups.topics import Assignment
from support.calls import counted_calls
from support.properties import examples

TOPICS = [UUID(int=number) for number in range(1, 8)]
T1, T2, T3, T4 = TOPICS[:4]
Members = dict[str, MemberSpec]


def member(*topics: UUID, previous: Assignment | None = None, instance_id: str | None = None) -> MemberSpec:
    return MemberSpec(frozenset(topics), previous or {}, instance_id)


def again(members: Members, assigned: Mapping[str, Assignment]) -> Members:
    """The same members after they were assigned this."""
    return {
        member_id: MemberSpec(spec.subscribed, assigned[member_id], spec.instance_id)
        for member_id, spec in members.items()
        if member_id in assigned
    }


def owners(assigned: Mapping[str, Assignment]) -> dict[tuple[UUID, int], str]:
    return {
        (topic_id, partition): member_id
        for member_id, assignment in assigned.items()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    }


def check_valid(members: Members, topics: Mapping[UUID, int], assigned: Mapping[str, Assignment]) -> None:
    assert set(assigned) == set(members)
    wanted = {topic_id for spec in members.values() for topic_id in spec.subscribed}
    expected = {(topic_id, partition) for topic_id in wanted for partition in range(topics[topic_id])}
    assert set(owners(assigned)) == expected
    assert sum(map(count, assigned.values())) == len(expected), "one owner each"
    for member_id, assignment in assigned.items():
        assert set(assignment) <= members[member_id].subscribed
        assert all(assignment.values()), "no empty sets"


topic_counts = st.lists(st.integers(0, 7), min_size=len(TOPICS), max_size=len(TOPICS)).map(
    lambda counts: dict(zip(TOPICS, counts, strict=True))
)
subscriptions = st.frozensets(st.sampled_from(TOPICS), max_size=5)
assignments = st.dictionaries(
    st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1, max_size=6), max_size=4
)
member_ids = st.sampled_from([f"m{number}" for number in range(8)])


@st.composite
def unlike_members(draw: st.DrawFn) -> Members:
    return {
        member_id: MemberSpec(draw(subscriptions), draw(assignments))
        for member_id in draw(st.lists(member_ids, min_size=1, unique=True))
    }


@st.composite
def alike_members(draw: st.DrawFn) -> Members:
    subscribed = draw(subscriptions)
    return {
        member_id: MemberSpec(subscribed, draw(assignments))
        for member_id in draw(st.lists(member_ids, min_size=1, unique=True))
    }


@pytest.mark.parametrize("assignor", [assign_uniformly, assign_ranges])
@examples(60)
@given(members=st.one_of(alike_members(), unlike_members()), topics=topic_counts)
def test_every_partition_goes_to_one_subscriber_whatever_was_before(
    assignor: Assignor, members: Members, topics: dict[UUID, int]
) -> None:
    assigned = assignor(members, topics)
    check_valid(members, topics, assigned)
    reordered = {member_id: members[member_id] for member_id in reversed(list(members))}
    turned = {topic_id: topics[topic_id] for topic_id in reversed(list(topics))}
    assert assignor(reordered, turned) == assigned, "no order matters"


@examples(80)
@given(members=alike_members(), topics=topic_counts)
def test_uniform_is_within_one_when_subscriptions_are_equal(
    members: Members, topics: dict[UUID, int]
) -> None:
    counts = sorted(map(count, assign_uniformly(members, topics).values()))
    assert counts[-1] - counts[0] <= 1


@examples(120)
@given(members=unlike_members(), topics=topic_counts)
def test_uniform_is_as_even_as_subscriptions_allow(members: Members, topics: dict[UUID, int]) -> None:
    assert improvable(members, assign_uniformly(members, topics)) is None


@examples(80)
@given(members=st.one_of(alike_members(), unlike_members()), topics=topic_counts)
def test_uniform_leaves_an_even_assignment_alone(members: Members, topics: dict[UUID, int]) -> None:
    assigned = assign_uniformly(members, topics)
    assert assign_uniformly(again(members, assigned), topics) == assigned


@examples(60)
@given(members=alike_members(), topics=topic_counts, joins=st.integers(1, 3))
def test_only_what_newcomers_get_moves_when_they_join(
    members: Members, topics: dict[UUID, int], joins: int
) -> None:
    before = assign_uniformly(members, topics)
    subscribed = next(iter(members.values())).subscribed
    newcomers = {f"new{number}": MemberSpec(subscribed) for number in range(joins)}
    after = assign_uniformly({**again(members, before), **newcomers}, topics)
    was, now = owners(before), owners(after)
    moved = {key for key in was if was[key] != now[key]}
    assert {now[key] for key in moved} <= set(newcomers)


@examples(60)
@given(members=alike_members(), topics=topic_counts, data=st.data())
def test_only_what_the_leaver_had_moves_when_it_leaves(
    members: Members, topics: dict[UUID, int], data: st.DataObject
) -> None:
    before = assign_uniformly(members, topics)
    leaver = data.draw(st.sampled_from(sorted(members)))
    rest = {member_id: spec for member_id, spec in again(members, before).items() if member_id != leaver}
    after = assign_uniformly(rest, topics)
    was, now = owners(before), owners(after)
    assert {was[key] for key in now if was[key] != now[key]} <= {leaver}


def test_uniform_gives_every_member_something_of_every_topic() -> None:
    """Two topics, two members: not one topic each, even when the second comes later."""
    topics = {T1: 10, T2: 10}
    alone = assign_uniformly({"a": member(T1, T2)}, topics)
    both = assign_uniformly({"a": member(T1, T2, previous=alone["a"]), "b": member(T1, T2)}, topics)
    assert {member_id: {t: len(p) for t, p in assigned.items()} for member_id, assigned in both.items()} == {
        "a": {T1: 5, T2: 5},
        "b": {T1: 5, T2: 5},
    }


def test_uniform_hands_over_along_a_chain() -> None:
    """c shares nothing with a: only if b gives T2 to c can b take T1 from a."""
    members = {
        "a": member(T1, previous={T1: frozenset(range(4))}),
        "b": member(T1, T2, previous={T2: frozenset(range(2))}),
        "c": member(T2),
    }
    assigned = assign_uniformly(members, {T1: 4, T2: 2})
    assert {member_id: count(assignment) for member_id, assignment in assigned.items()} == {
        "a": 2,
        "b": 2,
        "c": 2,
    }
    assert assigned["a"][T1] < frozenset(range(4))


def unlike_group(partitions: int, others: int) -> tuple[Members, dict[UUID, int]]:
    """Three members of which two meet only in the third, and many that share no topic with them."""
    rest = [UUID(int=number) for number in range(100, 150)]
    members = {"x": member(T1), "y": member(T1, T2), "z": member(T2)}
    members |= {f"d{number}": member(*rest) for number in range(others)}
    return members, {T1: partitions, T2: partitions, **dict.fromkeys(rest, 1)}


def test_uniform_takes_no_longer_for_members_that_have_what_they_may_have() -> None:
    """They are not walked once for each partition that others hand over."""
    members, topics = unlike_group(400, 200)
    with counted_calls() as calls:
        assigned = assign_uniformly(members, topics)
    assert sorted(count(assigned[member_id]) for member_id in "xyz") == [266, 267, 267]
    assert calls[0] < 50 * len(members)


def test_uniform_hands_over_many_partitions_at_once() -> None:
    """600, 300 of them along a chain of two: a call or two for each of them, but no round."""
    before = frozenset(range(900))
    members = {
        "a": member(T1, previous={T1: before}),
        "b": member(T1, T2, previous={T2: before}),
        "c": member(T2),
    }
    with counted_calls() as calls:
        assigned = assign_uniformly(members, {T1: 900, T2: 900})
    assert [count(assigned[member_id]) for member_id in "abc"] == [600, 600, 600]
    assert calls[0] < 2_000


def test_uniform_ends_when_it_has_taken_its_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten members in a row, each of which shares a topic with the next."""
    ids = [UUID(int=number) for number in range(11)]
    topics = dict.fromkeys(ids, 2) | {ids[0]: 100}
    members = {f"m{number}": member(ids[number], ids[number + 1]) for number in range(10)}
    members["m0"] = member(ids[0], previous={ids[0]: frozenset(range(100))})
    members["m1"] = member(ids[0], ids[1], ids[2])
    even = assign_uniformly(members, topics)
    assert improvable(members, even) is None
    monkeypatch.setattr(assignors, "EFFORT_MAX", 0)
    uneven = assign_uniformly(members, topics)
    check_valid(members, topics, uneven)
    assert improvable(members, uneven) is not None


def test_uniform_leaves_a_member_with_what_only_it_may_have() -> None:
    members = {"a": member(T1, T2), "b": member(T2), "c": member(T2)}
    assigned = assign_uniformly(members, {T1: 9, T2: 4})
    assert assigned["a"] == {T1: frozenset(range(9))}
    assert count(assigned["b"]) == count(assigned["c"]) == 2


def test_more_members_than_partitions_leaves_some_as_stand_bys() -> None:
    members = {f"m{number}": member(T1) for number in range(5)}
    assert sorted(map(count, assign_uniformly(members, {T1: 3}).values())) == [0, 0, 1, 1, 1]


def test_no_members_and_no_topics() -> None:
    for assignor in (assign_uniformly, assign_ranges):
        assert assignor({}, {}) == {}
        assert assignor({"a": member()}, {}) == {"a": {}}
        assert assignor({"a": member(T1), "b": member()}, {T1: 0}) == {"a": {}, "b": {}}


def test_range_puts_the_same_numbers_of_equal_topics_together() -> None:
    members = {member_id: member(T1, T2, T3) for member_id in ("a", "b", "c")}
    assigned = assign_ranges(members, {T1: 8, T2: 8, T3: 2})
    for assignment in assigned.values():
        assert assignment[T1] == assignment[T2]
    assert [sorted(assigned[member_id][T1]) for member_id in "abc"] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [sorted(assigned[member_id].get(T3, ())) for member_id in "abc"] == [[0], [1], []]


def test_range_counts_only_subscribers_of_each_topic() -> None:
    assigned = assign_ranges({"a": member(T1), "b": member(T1, T2), "c": member(T2)}, {T1: 4, T2: 4})
    assert assigned == {
        "a": {T1: frozenset({0, 1})},
        "b": {T1: frozenset({2, 3}), T2: frozenset({0, 1})},
        "c": {T2: frozenset({2, 3})},
    }


def test_range_keeps_the_place_of_a_static_member_under_a_new_id() -> None:
    def assigned(static_id: str) -> Assignment:
        members = {
            "b": member(T1),
            static_id: member(T1, instance_id="one"),
            "c": member(T1),
        }
        return assign_ranges(members, {T1: 6})[static_id]

    assert assigned("a") == assigned("z") == {T1: frozenset({0, 1})}
