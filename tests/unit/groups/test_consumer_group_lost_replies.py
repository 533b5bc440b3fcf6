"""Replies to heartbeats that are lost with their connection, to a client that does not ask for them again."""

from __future__ import annotations

from consumer_group_harness import ConsumerWorld
from group_harness import REBALANCE_MS

from nilometer.groups.consumer.group import MemberState
from nilometer.groups.requests import ConsumerGroupHeartbeatResult

OLD, NEW = 50_000, 50_001


def partitions(world: ConsumerWorld, reply: ConsumerGroupHeartbeatResult) -> dict[str, list[int]] | None:
    if reply.assignment is None:
        return None
    return {world.topics.name_of(each.topic_id) or "": list(each.partitions) for each in reply.assignment}


def join_alone(world: ConsumerWorld) -> None:
    """A has joined with all four partitions, and has confirmed them."""
    world.beat("A", 0, topics=["t"], owned={}, rebalance_ms=REBALANCE_MS, port=OLD)
    world.beat("A", 2, owned={"t": [0, 1, 2, 3]}, port=OLD)


def test_a_revocation_whose_reply_was_lost_is_repeated_on_the_next_connection(world: ConsumerWorld) -> None:
    join_alone(world)
    world.enter("B", "t")
    lost = world.beat("A", 2, port=OLD)
    kept = partitions(world, lost)
    assert kept is not None
    assert len(kept["t"]) == 2
    assert world.of("A").state is MemberState.UNREVOKED_PARTITIONS
    assert partitions(world, world.beat("A", 2, port=OLD)) is None, "as Kafka: a connection loses no reply"
    assert partitions(world, world.beat("A", 2, port=NEW)) == kept
    assert partitions(world, world.beat("A", 2, port=NEW)) is None
    world.beat("A", 2, owned=kept, port=NEW)
    assert world.of("A").state is MemberState.STABLE


def test_partitions_whose_reply_was_lost_are_given_on_the_next_connection(world: ConsumerWorld) -> None:
    """They came free in the member's epoch, which therefore says nothing of the loss."""
    a = world.consumer("A")
    world.beat("B", 0, topics=["t"], owned={}, rebalance_ms=REBALANCE_MS, port=OLD)
    assert world.of("B").state is MemberState.UNRELEASED_PARTITIONS
    a.step()
    a.step()
    epoch = world.of("B").member_epoch
    lost = world.beat("B", epoch, port=OLD)
    given = partitions(world, lost)
    assert given is not None
    assert len(given["t"]) == 2
    assert lost.member_epoch == epoch
    assert partitions(world, world.beat("B", epoch, port=OLD)) is None
    assert partitions(world, world.beat("B", epoch, port=NEW)) == given


def test_a_coordinator_that_takes_over_repeats_the_assignment(world: ConsumerWorld) -> None:
    join_alone(world)
    world.fail_over()
    assert partitions(world, world.beat("A", 2, port=OLD)) == {"t": [0, 1, 2, 3]}
    assert partitions(world, world.beat("A", 2, port=OLD)) is None


def test_a_member_that_has_left_is_forgotten(world: ConsumerWorld) -> None:
    join_alone(world)
    world.enter("B", "t")
    world.beat("A", -1, port=OLD)
    assert world.consumer_group().peers == {}
