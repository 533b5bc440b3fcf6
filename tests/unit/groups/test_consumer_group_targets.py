"""When a consumer group's target assignment is computed, and what happens before the next one."""

from __future__ import annotations

from consumer_group_harness import ConsumerWorld, no_wait_config

from nilometer.groups.records import (
    ConsumerGroupTargetAssignmentMetadataKey,
    CoordinatorRecord,
)


def test_joins_in_quick_succession_share_a_target_assignment() -> None:
    world = ConsumerWorld(config=no_wait_config(group_consumer_assignment_interval_ms=1_000))
    world.create("t", 12)
    assert world.names(world.enter("A", "t").assignment or ()) == {"t": list(range(12))}
    world.pass_time(300)
    replies = [world.enter(member_id, "t") for member_id in ("B", "C", "D")]
    assert [reply.member_epoch for reply in replies] == [2, 2, 2], "in the last epoch that has a target"
    assert {reply.heartbeat_interval_ms for reply in replies} == {700}, "they are to ask when there is more"
    assert world.consumer_group().state == "Assigning"
    assert not any(_is_target(record) for record in world.written)
    world.pass_time(699)
    assert world.consumer_group().assignment_epoch == 2
    world.pass_time(1)
    assert world.consumer_group().assignment_epoch == 5
    assert len(world.target("D")["t"]) == 3
    reply = world.beat("B", 2)
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (5, 5_000)


def _is_target(record: CoordinatorRecord) -> bool:
    return isinstance(record.key, ConsumerGroupTargetAssignmentMetadataKey)


def test_what_is_no_longer_subscribed_to_is_revoked_before_the_next_target() -> None:
    world = ConsumerWorld(config=no_wait_config(group_consumer_assignment_interval_ms=1_000))
    world.create("t", 2)
    world.create("u", 2)
    world.enter("A", "t", "u")
    reply = world.beat("A", 2, topics=["u"])
    assert (
        world.names(reply.assignment or ()) == {"u": [0, 1]} and world.consumer_group().state == "Assigning"
    )
    reply = world.beat("A", 2, owned={"u": [0, 1]})
    assert reply.assignment is None and reply.member_epoch == 2, "not given back by the old target"
    world.pass_time(1_000)
    assert world.beat("A", 2).member_epoch == 3


def test_a_coordinator_that_takes_over_goes_on_with_the_assignment_that_was_due() -> None:
    world = ConsumerWorld(config=no_wait_config(group_consumer_assignment_interval_ms=1_000))
    world.create("t", 2)
    world.enter("A", "t")
    world.enter("B", "t")
    world.fail_over()
    assert world.consumer_group().state == "Assigning"
    world.pass_time(1_000)
    assert world.target("B") == {"t": [1]}
