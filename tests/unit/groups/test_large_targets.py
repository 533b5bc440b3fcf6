"""A target assignment of many members is written in several turns, in which the group goes on."""

from __future__ import annotations

from uuid import UUID

import pytest
from consumer_group_harness import ConsumerWorld, no_wait_config
from share_group_harness import ShareWorld
from streams_group_harness import StreamsWorld

from nilometer.groups import share_groups, turn
from nilometer.groups.consumer import rebalance
from nilometer.groups.consumer.assignors import MemberSpec
from nilometer.groups.records import (
    ConsumerGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberKey,
)
from nilometer.groups.share_group import assign_simply
from nilometer.groups.streams import streams_groups
from nilometer.groups.topics import Assignment
from nilometer.wire.errors import ErrorCode

MEMBERS = [f"m{number:02}" for number in range(12)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part ends after about three of the members of these tests."""
    monkeypatch.setattr(turn, "WRITTEN_AT_ONCE_MAX", 7)
    monkeypatch.setattr(rebalance, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(share_groups, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(streams_groups, "AT_ONCE_MAX", 0)


def written(world: ConsumerWorld) -> list[str]:
    """Return the members whose target the last call has written."""
    keys = (
        ConsumerGroupTargetAssignmentMemberKey,
        ShareGroupTargetAssignmentMemberKey,
        StreamsGroupTargetAssignmentMemberKey,
    )
    return [record.key.member_id for record in world.written if isinstance(record.key, keys) and record.value]


def next_part(world: ConsumerWorld) -> list[str]:
    world.now_ms += 1
    world.on_time()
    return written(world)


def joined() -> ConsumerWorld:
    """Members, and no target yet but that of nothing for the first of them; one for all is computed."""
    world = ConsumerWorld(config=no_wait_config())
    for name in ("t", "u"):
        world.create(name, len(MEMBERS))
    for member_id in MEMBERS:
        assert world.enter(member_id, "t", "u").error_code is ErrorCode.none
    world.compute()
    while world.consumer_group().unwritten is not None:
        next_part(world)
    assert world.consumer_group().assignment_epoch == 2 and set(world.consumer_group().target) == {"m00"}
    world.compute()
    return world


def come_to_rest(world: ConsumerWorld) -> None:
    for _ in range(3):
        world.pass_time(1_000)
    group = world.consumer_group()
    assert group.state != "Assigning" and group.unwritten is None
    assert {len(world.target(each).get("t", ())) for each in group.members} == {1}


def test_a_target_of_a_consumer_group_is_written_in_several_turns() -> None:
    world = joined()
    group, parts = world.consumer_group(), [written(world)]
    while group.unwritten is not None:
        assert (group.state, group.assignment_epoch) == ("Assigning", 2)
        reply = world.beat(MEMBERS[1], world.of(MEMBERS[1]).member_epoch)
        assert (reply.member_epoch, reply.heartbeat_interval_ms) == (2, 1_000)
        assert not world.needed, "the next one waits until this one is written"
        parts.append(next_part(world))
    assert max(map(len, parts)) == 3
    assert [member_id for part in parts for member_id in part] == MEMBERS
    assert group.assignment_epoch == group.group_epoch == 13


def test_the_members_of_the_moment_get_theirs() -> None:
    """One leaves, and one joins, while the target is written."""
    world = joined()
    world.beat(MEMBERS[-1], -1)
    world.enter("later", "t", "u")
    while world.consumer_group().unwritten is not None:
        next_part(world)
    group = world.consumer_group()
    assert set(group.target) == {*MEMBERS[:-1]} and group.assignment_epoch == 13
    world.compute()
    come_to_rest(world)


def test_a_static_member_that_is_replaced_meanwhile_has_the_target_computed_again() -> None:
    world = ConsumerWorld(config=no_wait_config())
    for name in ("t", "u"):
        world.create(name, len(MEMBERS))
    for member_id in MEMBERS:
        world.enter(member_id, "t", "u", instance=f"i{member_id}")
    while world.needed or world.consumer_group().unwritten is not None:
        world.pass_time(1)
    world.enter("later", "t", "u")
    world.compute()
    assert world.consumer_group().unwritten is not None
    world.beat(MEMBERS[-1], -2, instance=f"i{MEMBERS[-1]}")
    world.enter("again", "t", "u", instance=f"i{MEMBERS[-1]}")
    next_part(world)
    group = world.consumer_group()
    assert group.assignment_epoch < group.group_epoch and len(world.needed) == 1
    world.compute()
    for _ in range(3):
        world.pass_time(1_000)
    assert group.state != "Assigning"
    given = [partition for member_id in group.members for partition in world.target(member_id).get("t", [])]
    assert sorted(given) == list(range(len(MEMBERS)))


def test_a_group_that_all_members_leave_has_nothing_written() -> None:
    world = joined()
    for member_id in MEMBERS:
        world.beat(member_id, -1)
    assert next_part(world) == []
    assert world.consumer_group().target == {} and world.consumer_group().unwritten is None


def test_a_coordinator_that_takes_over_computes_again_what_was_written_in_part() -> None:
    world = joined()
    world.fail_over()
    group = world.consumer_group()
    assert (len(group.target), group.assignment_epoch, group.state) == (3, 2, "Assigning")
    come_to_rest(world)


def test_a_target_of_a_share_group_is_written_in_several_turns() -> None:
    world = ShareWorld()
    for name in ("t", "u"):
        world.create(name, 1)
    members = [world.share_member(member_id, "t", "u") for member_id in MEMBERS]
    world.compute()
    assert written(world) == ["m00"] and world.share_group().target == {"m00": {}}
    members[0].step()
    world.compute()
    group, parts = world.share_group(), [written(world)]
    members.pop().leave()
    while group.unwritten is not None:
        assert group.assignment_epoch < group.group_epoch
        members[1].step()
        assert members[1].last.heartbeat_interval_ms == 1_000 and not world.needed
        parts.append(next_part(world))
    assert max(map(len, parts)) == 4, "each has one of the two partitions"
    assert [member_id for part in parts for member_id in part] == MEMBERS[:-1]
    world.share_settle(*members)
    assert all(member.assigned for member in members)
    before = group.hard_state()
    world.fail_over()
    assert world.share_group().hard_state() == before


def test_a_target_of_a_streams_group_is_written_in_several_turns() -> None:
    world = StreamsWorld()
    world.create("t", 2 * len(MEMBERS))
    members = [world.streams_member(member_id) for member_id in MEMBERS]
    while world.needed or world.streams_group().unwritten is not None:
        world.pass_time(1)
    world.streams_settle(*members)
    group = world.streams_group()
    assert {len(member.active) for member in members} == {2}
    before = group.assignment_epoch
    members.pop().leave()
    members[0].step()
    world.compute()
    parts = [written(world)]
    while group.unwritten is not None:
        assert (group.state, group.assignment_epoch) == ("Assigning", before)
        members[1].step()
        assert members[1].epoch == before and not world.needed
        parts.append(next_part(world))
    assert parts == [["m00", "m01"], [], []], "then seven and two members, whose tasks stay as they are"
    assert group.assignment_epoch == group.group_epoch
    world.streams_settle(*members)
    assert sorted(task for member in members for task in member.active) == [
        ("0", partition) for partition in range(2 * len(MEMBERS))
    ]
    before_fail_over = group.hard_state()
    world.fail_over()
    assert world.streams_group().hard_state() == before_fail_over


class Looked(dict[UUID, frozenset[int]]):
    """A previous assignment in which single topics may be looked up, that is not walked."""

    def items(self) -> object:  # type: ignore[override]
        raise AssertionError("walked for each topic")


def test_topics_with_other_members_each_are_assigned_without_walking_all_assignments_for_each() -> None:
    topics = [UUID(int=number) for number in range(5)]
    subscribed = {member_id: frozenset(topics) - {topics[place]} for place, member_id in enumerate("abcde")}
    previous: dict[str, Assignment] = {
        member_id: Looked(dict.fromkeys(subscribed[member_id], frozenset({0}))) for member_id in "abcde"
    }
    specs = {member_id: MemberSpec(subscribed[member_id], previous[member_id]) for member_id in subscribed}
    assigned = assign_simply(specs, dict.fromkeys(topics, frozenset({0})))
    assert {each: set(assigned[each]) for each in assigned} == {
        each: set(subscribed[each]) for each in subscribed
    }
