"""Static members of a classic group (KIP-345, KIP-814): restarts, equal instance ids, rebalances."""

from __future__ import annotations

import pytest
from group_harness import (
    DELAY_MS,
    REBALANCE_MS,
    GroupWorld,
    group_record,
    protocols,
)

from nilometer.groups.requests import JoinGroupResult
from nilometer.wire.errors import ErrorCode


def test_kip_345_a_static_member_that_restarts_keeps_its_place_without_a_rebalance() -> None:
    world = GroupWorld()
    leader = world.join(client="a", instance="one")
    follower = world.join(client="b", instance="two")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(follower).leader == world.joined(leader).member_id == "one-1"
    world.settle(["one-1", "two-2"], 1)

    back = world.joined(world.join(client="b", instance="two"))
    assert (back.member_id, back.generation_id, back.leader) == ("two-3", 1, "one-1")
    assert [each.member_id for each in group_record(world).members] == ["one-1", "two-3"]
    assert world.synced(world.sync("two-3", 1, instance="two")).assignment == b"two-2"
    assert world.heartbeat("two-2", 1, instance="two") is ErrorCode.fenced_instance_id
    assert world.heartbeat("two-2", 1) is ErrorCode.unknown_member_id
    assert world.state() == "Stable"
    world.fail_over()
    assert world.heartbeat("two-3", 1, instance="two") is ErrorCode.none


@pytest.mark.parametrize(
    ("version", "leader", "members", "skip"), [(8, "one-1", 0, False), (9, "one-2", 1, True)]
)
def test_kip_814_a_leader_that_restarts_is_kept_from_assigning_again(
    version: int, leader: str, members: int, skip: bool
) -> None:
    """Older versions are told the leader's former id, so that they do not know themselves for it."""
    world = GroupWorld()
    world.stable("a", instance="one")
    back = world.joined(world.join(instance="one", version=version))
    assert (back.leader, len(back.members), back.skip_assignment) == (leader, members, skip)
    assert back.member_id == "one-2"
    assert world.joined(world.join("one-2", instance="one")).generation_id == 2, (
        "it is the leader all the same"
    )


def test_kip_345_a_static_member_that_restarts_with_another_choice_of_protocols_rebalances() -> None:
    world = GroupWorld()
    world.stable("a", instance="one", offers=protocols("range", "sticky"))
    back = world.joined(world.join(instance="one", offers=protocols("sticky", "range")))
    assert (back.generation_id, back.protocol_name) == (2, "sticky")


def test_kip_345_two_members_with_one_instance_id_the_later_counts() -> None:
    """In every phase: the former is fenced at once, also if it waits for an answer."""
    world = GroupWorld()
    former = world.join(instance="i")
    later = world.join(instance="i")
    assert world.joined(former) == JoinGroupResult(ErrorCode.fenced_instance_id, "i-1")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(later).member_id == "i-2"
    other = world.join(client="b")
    world.join("i-2", instance="i")
    assert world.joined(other).generation_id == 2
    latest = world.join(instance="i")
    assert world.state() == "PreparingRebalance", "the leader may have been told of the former id"
    assert world.synced(world.sync("i-2", 2, instance="i")).error_code is ErrorCode.fenced_instance_id
    world.join("b-3")
    assert world.joined(latest).generation_id == 3
    assert world.joined(world.join("i-2", instance="i")).error_code is ErrorCode.fenced_instance_id
    assert world.commit(1, member_id="i-2", generation=3, instance="i") is ErrorCode.fenced_instance_id
    assert world.leave(("i-2", "i")) == [ErrorCode.fenced_instance_id]


def test_kip_345_a_rebalance_keeps_static_members_that_do_not_join() -> None:
    world = GroupWorld()
    first = world.join(client="a")
    world.join(client="b", instance="i")
    world.pass_time(2 * DELAY_MS)
    assert world.joined(first).error_code is ErrorCode.none
    world.settle(["a-1", "i-2"], 1)
    again = world.join("a-1")
    for _ in range(30):
        world.pass_time(1_000)
        world.heartbeat("i-2", 1, instance="i")
    reply = world.joined(again)
    assert [member.member_id for member in reply.members] == ["a-1", "i-2"]
    assert reply.members[1].group_instance_id == "i"


def test_kip_345_if_none_of_the_static_members_joins_the_wait_starts_again() -> None:
    world = GroupWorld()
    world.join(client="a", instance="i")
    world.join(client="b", instance="j")
    world.pass_time(2 * DELAY_MS)
    world.settle(["i-1", "j-2"], 1)
    world.join(client="c")
    world.leave("c-3")
    for _ in range(2 * REBALANCE_MS // 1000):
        assert world.heartbeat("i-1", 1, instance="i") is ErrorCode.rebalance_in_progress
        assert world.heartbeat("j-2", 1, instance="j") is ErrorCode.rebalance_in_progress
        world.pass_time(1_000)
    first = world.join("i-1", instance="i")
    assert not world.is_answered(first)
    world.join("j-2", instance="j")
    assert world.joined(first).generation_id == 2


def test_a_pending_id_cannot_be_joined_as_a_static_member() -> None:
    world = GroupWorld()
    world.join(version=4)
    assert world.joined(world.join("a-1", instance="i")).error_code is ErrorCode.unknown_member_id
    assert not world.is_answered(world.join("a-1"))
