"""Static members of a consumer group: away, back, removed."""

from __future__ import annotations

from consumer_group_harness import CONSUMER_SESSION_MS, Consumer, ConsumerWorld
from group_harness import REBALANCE_MS

from nilometer.groups.consumer.group import MemberState
from nilometer.wire.errors import ErrorCode


def test_a_static_member_that_goes_away_keeps_its_place_and_its_partitions(world: ConsumerWorld) -> None:
    a, b = Consumer(world, "A", instance="one"), Consumer(world, "B")
    a.enter()
    b.enter()
    world.settle_all(a, b)
    mine = set(a.owned)
    reply = world.beat("A", -2, instance="one")
    assert (reply.error_code, reply.member_epoch) == (ErrorCode.none, -2)
    assert world.of("A").member_epoch == -2
    b.step()
    assert world.consumer_group().group_epoch == 3 and len(b.owned) == 2

    back = Consumer(world, "A2", instance="one")
    back.enter()
    assert (back.epoch, back.owned) == (3, mine), "at once, and no other member noticed"
    assert set(world.consumer_group().members) == {"A2", "B"}
    assert world.beat("A", 3, instance="one").error_code is ErrorCode.fenced_instance_id
    assert world.beat("A", -1, instance="one").error_code is ErrorCode.fenced_instance_id


def test_a_static_member_that_stays_away_is_removed(world: ConsumerWorld) -> None:
    world.enter("A", "t", instance="one")
    world.enter("B", "t")
    world.beat("A", -2, instance="one")
    world.pass_time(CONSUMER_SESSION_MS - 1)
    world.beat("B", 3)
    assert set(world.consumer_group().members) == {"A", "B"}
    world.pass_time(1)
    assert set(world.consumer_group().members) == {"B"}


def test_an_instance_id_in_use_is_not_released(world: ConsumerWorld) -> None:
    world.enter("A", "t", instance="one")
    reply = world.enter("B", "t", instance="one")
    assert reply.error_code is ErrorCode.unreleased_instance_id
    assert not world.written and set(world.consumer_group().members) == {"A"}
    assert world.enter("A", "t", instance="one").error_code is ErrorCode.none, "itself it may replace"
    assert world.beat("B", 2, instance="one").error_code is ErrorCode.fenced_instance_id


def test_a_static_member_that_leaves_for_good_is_gone_at_once(world: ConsumerWorld) -> None:
    world.enter("A", "t", instance="one")
    assert world.beat("A", -1, instance="one").member_epoch == -1
    assert world.consumer_group().is_empty


def test_a_static_member_in_the_middle_of_revoking_lets_go_when_it_goes_away(world: ConsumerWorld) -> None:
    world.enter("A", "t", instance="one")
    world.enter("B", "t")
    world.beat("A", 2, instance="one")
    assert world.of("A").state is MemberState.UNREVOKED_PARTITIONS
    world.beat("A", -2, instance="one")
    assert world.names(world.beat("B", 3).assignment or ()) == {"t": [2, 3]}
    world.pass_time(REBALANCE_MS)
    assert "A" in world.consumer_group().members, "it is no longer waited for to revoke"
