"""The built-in assignors: everything once, evenly, and what is sticky stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.client.group.assignors import (
    ASSIGNOR_NAMES,
    Assignments,
    AssignmentTask,
    MemberSubscription,
    RebalanceProtocol,
    assignor_by_name,
    balanced,
    common_protocol,
    read_claim,
    settle_claims,
    write_claim,
)
from nilometer.client.network.cluster_metadata import TopicPartition
from support.properties import examples

TOPICS = ("a", "b", "c", "d")
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9))


def task_of(
    counts: Mapping[str, int],
    members: Mapping[str, Sequence[str]],
    owned: Mapping[str, Sequence[TopicPartition]] | None = None,
    generation: int = 1,
    user_data: Mapping[str, bytes | None] | None = None,
) -> AssignmentTask:
    return AssignmentTask(
        counts,
        {
            member: MemberSubscription(
                tuple(topics),
                owned=tuple((owned or {}).get(member, ())),
                generation=generation,
                user_data=(user_data or {}).get(member),
            )
            for member, topics in members.items()
        },
    )


def parts(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def uniform(count: int) -> dict[str, tuple[str, ...]]:
    return {f"m{number:02}": TOPICS for number in range(count)}


@st.composite
def tasks(draw: st.DrawFn, *, same: bool = False) -> AssignmentTask:
    names = draw(st.lists(st.integers(0, 30), min_size=1, max_size=7, unique=True))
    wanted = st.sets(st.sampled_from(TOPICS))
    shared = draw(wanted)
    members = {f"m{name}": tuple(sorted(shared if same else draw(wanted))) for name in names}
    counts = draw(partition_counts)
    owners = st.none() | st.sampled_from(sorted(members))
    owned: dict[str, list[TopicPartition]] = {}
    for topic in TOPICS:
        for number in range(draw(st.integers(0, 9))):
            owner = draw(owners)
            if owner is not None:
                owned.setdefault(owner, []).append(TopicPartition(topic, number))
    return task_of(counts, members, owned)


@pytest.mark.parametrize("name", ASSIGNOR_NAMES)
@examples(60)
@given(task=tasks())
def test_each_wanted_partition_goes_to_one_who_wants_it(name: str, task: AssignmentTask) -> None:
    found = assignor_by_name(name).assign(task)
    assert found.keys() == task.members.keys()
    given_out = [partition for partitions in found.values() for partition in partitions]
    assert len(given_out) == len(set(given_out))
    for member, partitions in found.items():
        assert all(partition.topic in task.members[member].topics for partition in partitions)
    withheld = set(task.partitions()) - set(given_out)
    if name != "cooperative-sticky":
        assert withheld == set()
    for partition in withheld:
        assert any(partition in said.owned for said in task.members.values())
    turned = AssignmentTask(task.partition_counts, dict(reversed(list(task.members.items()))))
    assert assignor_by_name(name).assign(turned) == found


def is_fair(task: AssignmentTask, found: Assignments) -> bool:
    """No member could take a partition from one that has at least two more."""
    return not any(
        len(found[taker]) + 1 < len(found[giver]) and partition.topic in task.members[taker].topics
        for giver, partitions in found.items()
        for partition in partitions
        for taker in found
    )


@examples(150)
@given(task=tasks())
def test_sticky_shares_are_fair_and_final(task: AssignmentTask) -> None:
    owned = {member: said.owned for member, said in task.members.items()}
    found = balanced(task, owned)
    assert is_fair(task, found)
    assert balanced(task, found) == found


@examples(150)
@given(task=tasks(same=True))
def test_with_equal_subscriptions_as_much_stays_as_can(task: AssignmentTask) -> None:
    there = set(task.partitions())
    owned = {
        member: [partition for partition in said.owned if partition in there]
        for member, said in task.members.items()
    }
    found = balanced(task, owned)
    stayed = sum(len(set(found[member]) & set(partitions)) for member, partitions in owned.items())
    each, more = divmod(len(there), len(owned))
    had = sorted((len(partitions) for partitions in owned.values()), reverse=True)
    assert stayed == sum(min(share, each + (rank < more)) for rank, share in enumerate(had))


@examples(100)
@given(task=tasks())
def test_cooperative_rounds_settle_and_never_hand_over_what_is_held(task: AssignmentTask) -> None:
    """Members give up what is not theirs any more and join again, until nothing is missing."""
    assignor = assignor_by_name("cooperative-sticky")
    owned = {member: set(said.owned) for member, said in task.members.items()}
    topics = {member: said.topics for member, said in task.members.items()}
    for generation in range(2, 5):
        held = {member: sorted(partitions) for member, partitions in owned.items()}
        current = task_of(task.partition_counts, topics, held, generation - 1)
        found = assignor.assign(current)
        for member, partitions in found.items():
            others = set().union(*(held[other] for other in held if other != member))
            assert not set(partitions) & others
        given_up = any(set(held[member]) - set(found[member]) for member in held)
        owned = {member: set(partitions) for member, partitions in found.items()}
        if not given_up:
            break
    else:
        pytest.fail("more than three rounds")
    assert {partition for partitions in owned.values() for partition in partitions} == set(task.partitions())
    assert is_fair(task, {member: sorted(partitions) for member, partitions in owned.items()})


def test_range_cuts_each_topic_into_runs() -> None:
    found = assignor_by_name("range").assign(
        task_of({"a": 5, "b": 2, "gone": 0}, {"m2": ["a", "b"], "m1": ["a", "b", "gone"], "m3": ["b"]})
    )
    assert found == {
        "m1": parts("a", 0, 1, 2) + parts("b", 0),
        "m2": parts("a", 3, 4) + parts("b", 1),
        "m3": [],
    }


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = {
        "x": MemberSubscription(("a",), instance_id="2"),
        "y": MemberSubscription(("a",), instance_id="1"),
        "a": MemberSubscription(("a",)),
    }
    found = assignor_by_name("range").assign(AssignmentTask({"a": 3}, members))
    assert found == {"y": parts("a", 0), "x": parts("a", 1), "a": parts("a", 2)}


def test_round_robin_passes_over_who_does_not_subscribe() -> None:
    found = assignor_by_name("roundrobin").assign(
        task_of({"a": 1, "b": 2, "c": 3}, {"m0": ["a"], "m1": ["a", "b"], "m2": ["a", "b", "c"]})
    )
    assert found == {"m0": parts("a", 0), "m1": parts("b", 0), "m2": parts("b", 1) + parts("c", 0, 1, 2)}


def test_sticky_is_fairer_where_subscriptions_differ() -> None:
    task = task_of({"a": 1, "b": 2, "c": 3}, {"m0": ["a"], "m1": ["a", "b"], "m2": ["a", "b", "c"]})
    assert assignor_by_name("sticky").assign(task) == {
        "m0": parts("a", 0),
        "m1": parts("b", 0, 1),
        "m2": parts("c", 0, 1, 2),
    }


def test_sticky_moves_no_more_than_the_share_of_who_is_new() -> None:
    counts = dict.fromkeys(TOPICS, 10)
    before = balanced(task_of(counts, uniform(4)), {})
    after = balanced(task_of(counts, uniform(5)), before)
    assert sorted(map(len, after.values())) == [8] * 5
    moved = [(name, one) for name, held in before.items() for one in held if one not in after[name]]
    assert len(moved) == 8
    left = balanced(task_of(counts, uniform(4)), {name: after[name] for name in uniform(4)})
    assert all(set(after[name]) <= set(left[name]) for name in uniform(4))


def test_five_hundred_members_are_dealt_out_at_once_and_level_after_one_had_all() -> None:
    task = task_of({"a": 600, "b": 400}, {f"m{number:03}": ["a", "b"] for number in range(500)})
    fresh = balanced(task, {})
    assert {len(partitions) for partitions in fresh.values()} == {2}
    levelled = balanced(task, {"m000": task.partitions()})
    assert {len(partitions) for partitions in levelled.values()} == {2}


def test_claims_travel_in_user_data_as_kafka_writes_them() -> None:
    data = write_claim((7, parts("a", 1, 0)))
    assert data == b"\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\7"
    assert read_claim(data) == (7, parts("a", 0, 1))
    assert read_claim(data[:-4]) == (-1, parts("a", 0, 1))  # of clients before there was a generation
    assert read_claim(None) == (-1, ())
    assert read_claim(b"nonsense") == (-1, ())
    sticky = assignor_by_name("sticky")
    assert sticky.user_data(parts("a", 1, 0), 7) == data
    claims = {"m1": write_claim((7, parts("a", 2, 3))), "m2": None}
    found = sticky.assign(task_of({"a": 4}, {"m1": ["a"], "m2": ["a"]}, user_data=claims))
    assert found == {"m1": parts("a", 2, 3), "m2": parts("a", 0, 1)}


def test_the_newest_claim_counts_and_of_two_equal_ones_neither() -> None:
    both = parts("a", 0, 1, 2)
    assert settle_claims({"old": (1, both), "m1": (2, parts("a", 1)), "m2": (2, parts("a", 1, 2))}) == {
        "old": parts("a", 0),
        "m1": [],
        "m2": parts("a", 2),
    }


def test_the_protocol_is_the_best_that_all_have() -> None:
    by_names = {
        ("range",): RebalanceProtocol.EAGER,
        ("cooperative-sticky",): RebalanceProtocol.COOPERATIVE,
        ("cooperative-sticky", "range"): RebalanceProtocol.EAGER,
        ("range", "cooperative-sticky"): RebalanceProtocol.EAGER,
    }
    for names, protocol in by_names.items():
        assert common_protocol([assignor_by_name(name) for name in names]) is protocol
