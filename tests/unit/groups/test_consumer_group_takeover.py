"""A coordinator that takes over a consumer group; its records of other versions; what it reports."""

from __future__ import annotations

from consumer_group_harness import Consumer, ConsumerWorld
from group_harness import REBALANCE_MS

from nilometer.groups.consumer.group import MemberState
from nilometer.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    CoordinatorRecord,
    encode_record,
)
from nilometer.groups.requests import DeleteGroups, DeleteGroupsResult, ListGroups
from nilometer.wire.errors import ErrorCode


def test_a_coordinator_that_takes_over_knows_all_but_gives_every_member_time(world: ConsumerWorld) -> None:
    a, b = world.consumer("A"), world.consumer("B")
    a.step()
    before = world.consumer_group().hard_state()
    world.pass_time(REBALANCE_MS - 1)
    world.fail_over()
    assert world.consumer_group().hard_state() == before
    assert world.of("A").state is MemberState.UNREVOKED_PARTITIONS
    world.pass_time(REBALANCE_MS - 1)
    assert set(world.consumer_group().members) == {"A", "B"}
    world.pass_time(1)
    assert set(world.consumer_group().members) == {"B"}, "A was still to revoke"
    world.settle_all(b)
    assert len(b.owned) == 4


def test_a_state_of_a_later_version_makes_the_member_start_again(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    key = ConsumerGroupCurrentMemberAssignmentKey("g", "A")
    value = world.of("A").assignment_value()
    later = ConsumerGroupCurrentMemberAssignmentValue(
        value.member_epoch, value.previous_member_epoch, 9, value.assigned_partitions, ()
    )
    world.log.append(encode_record(CoordinatorRecord(key, later)))
    world.fail_over()
    assert world.beat("A", 2, owned={"t": [0]}).error_code is ErrorCode.fenced_member_epoch
    assert world.beat("A", 2).error_code is ErrorCode.fenced_member_epoch
    assert world.enter("A", "t").error_code is ErrorCode.none
    assert world.of("A").state is MemberState.STABLE


def test_a_record_of_an_older_kafka_is_removed_with_the_next_epoch(world: ConsumerWorld) -> None:
    world.enter("A", "t")
    old = ConsumerGroupPartitionMetadataKey("g")
    world.log.append(encode_record(CoordinatorRecord(old, ConsumerGroupPartitionMetadataValue(()))))
    world.fail_over()
    world.beat("A", 2, topics=["t", "u"])
    assert CoordinatorRecord(old, None) in world.written


def test_deleting_an_empty_group_leaves_nothing_in_the_log(world: ConsumerWorld) -> None:
    world.enter("A", "t", regex="t.*")
    delete = DeleteGroups(("g",))
    assert world.ask(delete, DeleteGroupsResult).results[0].error_code is ErrorCode.non_empty_group
    world.beat("A", -1)
    assert world.ask(delete, DeleteGroupsResult).results[0].error_code is ErrorCode.none
    latest = dict(world.log)
    assert set(latest.values()) == {None}, "compaction will remove every key"
    assert ConsumerGroupMetadataKey("g") in {record.key for record in world.written}
    world.fail_over()
    assert world.shard.groups() == []


def test_what_describe_and_list_tell(world: ConsumerWorld) -> None:
    a, b = world.consumer("A"), Consumer(world, "B", instance="one")
    b.enter()
    a.step()
    told = world.describe_consumer()
    assert (told.error_code, told.group_state, told.group_epoch, told.assignment_epoch) == (
        ErrorCode.none,
        "Reconciling",
        3,
        3,
    )
    first, second = told.members
    assert (first.member_id, first.member_epoch, first.client_id, first.client_host) == (
        "A",
        2,
        "c",
        "/c.host",
    )
    assert (second.member_id, second.member_epoch, second.instance_id) == ("B", 3, "one")
    assert first.subscribed_topic_names == ("t",) and first.member_type == 1
    assert [(each.topic_name, each.partitions) for each in first.assignment] == [("t", (0, 1, 2, 3))], (
        "what it has yet to let go of is among it"
    )
    assert [(each.topic_name, each.partitions) for each in second.target_assignment] == [("t", (2, 3))]
    assert second.assignment == ()
    listed = world.listed(ListGroups(("reconciling",), ("consumer",)))
    assert [(group.group_id, group.protocol_type, group.group_state) for group in listed] == [
        ("g", "consumer", "Reconciling")
    ]
    assert world.listed(ListGroups((), ("classic",))) == []
    assert world.describe_consumer("other").error_code is ErrorCode.group_id_not_found
    assert world.describe().error_code is ErrorCode.group_id_not_found, "it is no classic group"
