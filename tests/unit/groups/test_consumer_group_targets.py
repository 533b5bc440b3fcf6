"""When a consumer group's target assignment is computed, and what happens before the next one."""

from __future__ import annotations

import pytest
from consumer_group_harness import ConsumerWorld, no_wait_config

from nilometer.groups import topics
from nilometer.groups.consumer import rebalance
from nilometer.groups.records import ConsumerGroupTargetAssignmentMetadataKey, CoordinatorRecord
from nilometer.wire.errors import ErrorCode


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


def test_a_large_target_is_computed_outside_and_the_group_is_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebalance, "AT_ONCE_MAX", 5)
    world = ConsumerWorld(config=no_wait_config())
    world.create("t", 4)
    assert world.names(world.enter("A", "t").assignment or ()) == {"t": [0, 1, 2, 3]}
    assert not world.needed, "five members and partitions are not many"
    reply = world.enter("B", "t")
    assert (reply.member_epoch, reply.heartbeat_interval_ms) == (2, 1_000), "it is to ask soon"
    assert len(world.needed) == 1 and world.consumer_group().state == "Assigning"
    world.enter("C", "t")
    world.beat("A", 2)
    assert len(world.needed) == 1, "one at a time"
    world.beat("A", -1)
    world.compute()
    assert world.consumer_group().assignment_epoch == 3, "of A and B, though C has come and A has gone"
    assert (world.target("B"), world.target("C")) == ({"t": [2, 3]}, {})
    assert len(world.needed) == 1, "the next one, for what has changed meanwhile"
    world.compute()
    assert world.consumer_group().assignment_epoch == world.consumer_group().group_epoch == 5
    assert {len(world.target(member)["t"]) for member in ("B", "C")} == {2}


def test_a_target_for_a_static_member_that_was_replaced_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebalance, "AT_ONCE_MAX", 3)
    world = ConsumerWorld(config=no_wait_config())
    world.create("t", 2)
    world.enter("A", "t", instance="i")
    world.enter("B", "t")
    world.beat("A", -2, instance="i")
    world.enter("A2", "t", instance="i")
    world.compute()
    assert world.target("A2") == {"t": [0, 1]} and not world.target("B"), "A2 has the target of A"
    world.compute()
    assert {len(world.target(member)["t"]) for member in ("A2", "B")} == {1}


def test_a_coordinator_that_takes_over_computes_the_target_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "AT_ONCE_MAX", 0)
    world = ConsumerWorld(config=no_wait_config())
    world.create("t", 2)
    world.enter("A", "t")
    (of_the_former,) = world.needed
    world.fail_over()
    world.compute()
    assert not world.target("A"), "a result for the former coordinator"
    world.pass_time(0)
    assert of_the_former not in world.needed
    world.pass_time(1)
    assert world.target("A") == {"t": [0, 1]}


def test_a_heavy_expression_is_matched_outside_also_against_topics_that_are_created_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ConsumerWorld(config=no_wait_config())
    world.create("ta", 1)
    monkeypatch.setattr(rebalance, "LIGHT", 0)
    reply = world.enter("A", regex="t.*")
    assert (reply.assignment, reply.heartbeat_interval_ms) == ((), 1_000), "nothing yet; it is to ask soon"
    world.create("tb", 1)
    world.create("u", 1)
    world.beat("A", reply.member_epoch)
    assert len(world.needed) == 1, "once"
    world.compute()
    assert world.target("A") == {"ta": [0]}
    world.compute()
    assert world.target("A") == {"ta": [0], "tb": [0]}
    assert not world.needed
    world.delete("ta")
    world.beat("A", world.of("A").member_epoch)
    assert world.target("A") == {"tb": [0]}


def test_an_expression_that_would_take_seconds_is_refused() -> None:
    world = ConsumerWorld(config=no_wait_config())
    heavy = "(a|aa|aaa|aaaa){0,250}z"
    for number in range(40):
        world.create("a" * 200 + str(number), 1)
    assert world.enter("A", regex=heavy).error_code is ErrorCode.none
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(topics, "HEAVIEST", 1_000_000)
        reply = world.enter("B", regex=heavy + "|b")
    assert reply.error_code is ErrorCode.invalid_regular_expression
    assert "takes too long" in (reply.error_message or "")
