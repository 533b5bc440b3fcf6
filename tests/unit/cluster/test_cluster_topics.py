"""Topics: create, add partitions, delete, as Kafka's controller answers."""

from __future__ import annotations

import pytest
from cluster_harness import TOPIC_CONFIGS, ClusterWorld

from nilometer.cluster.controller.brokers import decide_controlled_shutdown
from nilometer.cluster.controller.topics import (
    MorePartitions,
    NewTopic,
    TopicDefaults,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)
from nilometer.cluster.entries import encode_entry, entries_of
from nilometer.cluster.records import ConfigResourceType, PartitionCreated
from nilometer.cluster.states import TRANSACTION_STATE_TOPIC
from nilometer.identifiers import BrokerId, TopicId
from nilometer.wire.errors import ErrorCode


def test_k3_a_new_topic_is_led_and_in_sync_at_once(world: ClusterWorld) -> None:
    created = world.create("logs", num_partitions=3, replication_factor=3, configs={"retention.ms": "1000"})
    assert created.outcome.ok
    assert (created.num_partitions, created.replication_factor) == (3, 3)
    topic = world.image.topic("logs")
    assert topic is not None
    assert topic.id == created.topic_id
    assert world.image.topic_by_id(topic.id) is topic
    assert world.image.topic_by_uuid(topic.uuid) is topic
    assert world.image.config(ConfigResourceType.TOPIC, "logs") == {"retention.ms": "1000"}
    for state in topic.partitions:
        assert sorted(state.replicas) == [1, 2, 3]
        assert state.isr == state.replicas
        assert state.leader == state.replicas[0]
        assert (state.leader_epoch, state.partition_epoch) == (0, 0)
    assert sorted(state.leader for state in topic.partitions) == [1, 2, 3]


def test_defaults_stand_for_minus_one(world: ClusterWorld) -> None:
    decision = decide_create_topics(
        world.image,
        [NewTopic(name="t")],
        config_definition=TOPIC_CONFIGS,
        chance=world.chance,
        defaults=TopicDefaults(num_partitions=4, replication_factor=2),
    )
    (created,) = world.enact(decision)
    assert (created.num_partitions, created.replication_factor) == (4, 2)


def test_validate_only_writes_nothing(world: ClusterWorld) -> None:
    decision = decide_create_topics(
        world.image,
        [NewTopic(name="t", num_partitions=1, replication_factor=1), NewTopic(name="..")],
        config_definition=TOPIC_CONFIGS,
        chance=world.chance,
        defaults=TopicDefaults(),
        validate_only=True,
    )
    assert not decision
    assert [created.outcome.error for created in decision.reply] == [
        ErrorCode.none,
        ErrorCode.invalid_topic_exception,
    ]


REFUSED = [
    ({"name": ""}, ErrorCode.invalid_topic_exception, "empty string"),
    ({"name": "."}, ErrorCode.invalid_topic_exception, "'.' is not allowed"),
    ({"name": "a b"}, ErrorCode.invalid_topic_exception, "alphanumerics"),
    ({"name": "a\n"}, ErrorCode.invalid_topic_exception, "alphanumerics"),
    ({"name": "a/b"}, ErrorCode.invalid_topic_exception, "alphanumerics"),
    ({"name": "x" * 250}, ErrorCode.invalid_topic_exception, "max allowed length 249"),
    ({"name": "taken.name"}, ErrorCode.topic_already_exists, "already exists"),
    ({"name": "taken_name"}, ErrorCode.invalid_topic_exception, "collides with existing topic: taken.name"),
    ({"name": "t", "replication_factor": 0}, ErrorCode.invalid_replication_factor, "larger than 0"),
    ({"name": "t", "replication_factor": -2}, ErrorCode.invalid_replication_factor, "larger than 0"),
    ({"name": "t", "replication_factor": 4}, ErrorCode.invalid_replication_factor, "only 3 broker"),
    ({"name": "t", "num_partitions": 0}, ErrorCode.invalid_partitions, "non-positive"),
    ({"name": "t", "num_partitions": -7}, ErrorCode.invalid_partitions, "non-positive"),
    ({"name": "t", "num_partitions": 2**31 - 1}, ErrorCode.policy_violation, "Excessively large"),
    ({"name": "t", "configs": {"retention.ms": None}}, ErrorCode.invalid_config, "Null value"),
    ({"name": "t", "configs": {"retention.msx": "1"}}, ErrorCode.invalid_config, "retention.msx"),
    ({"name": "t", "configs": {"retention.ms": "soon"}}, ErrorCode.invalid_config, "must be a number"),
    ({"name": "t", "assignments": {0: [1, 1]}}, ErrorCode.invalid_replica_assignment, "more than once"),
    ({"name": "t", "assignments": {0: [9]}}, ErrorCode.invalid_replica_assignment, "no such broker"),
    ({"name": "t", "assignments": {0: []}}, ErrorCode.invalid_replica_assignment, "empty replica list"),
    ({"name": "t", "assignments": {1: [1]}}, ErrorCode.invalid_replica_assignment, "consecutive"),
    (
        {"name": "t", "assignments": {0: [1], 1: [1, 2]}},
        ErrorCode.invalid_replica_assignment,
        "not consistent",
    ),
    ({"name": "t", "assignments": {0: [1]}, "num_partitions": 1}, ErrorCode.invalid_request, "numPartitions"),
    (
        {"name": "t", "assignments": {0: [1]}, "replication_factor": 1},
        ErrorCode.invalid_request,
        "replication factor",
    ),
]


@pytest.mark.parametrize(("request_", "error", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_topic_that_cannot_be_is_refused(
    world: ClusterWorld, request_: dict[str, object], error: ErrorCode, reason: str
) -> None:
    assert world.create("taken.name").outcome.ok
    before = world.image.number
    created = world.create(**request_)
    assert created.outcome.error is error
    assert created.outcome.message is not None
    assert reason in created.outcome.message
    assert world.image.number == before


def test_topics_of_one_request_stand_alone_but_may_not_collide(world: ClusterWorld) -> None:
    names = ["a.b", "ok", "a_b", "twice", "twice"]
    decision = decide_create_topics(
        world.image,
        [NewTopic(name=name, num_partitions=1, replication_factor=1) for name in names],
        config_definition=TOPIC_CONFIGS,
        chance=world.chance,
        defaults=TopicDefaults(),
    )
    reply = world.enact(decision)
    assert [(created.name, created.outcome.error) for created in reply] == [
        ("a.b", ErrorCode.none),
        ("ok", ErrorCode.none),
        ("a_b", ErrorCode.invalid_topic_exception),
        ("twice", ErrorCode.invalid_request),
        ("twice", ErrorCode.invalid_request),
    ]
    assert [topic.name for topic in world.image.topics()] == ["a.b", "ok"]


def test_a_name_is_free_again_after_deletion_and_is_another_topic(world: ClusterWorld) -> None:
    first = world.create("a.b", configs={"retention.ms": "7"}).topic_id
    assert first is not None
    key = world.key("a.b")
    delta = world.append(
        next(entries_of(decide_delete_topics(world.image, [first]).units, world.image.controllership))
    )
    assert [topic.name for topic in delta.topics_deleted.values()] == ["a.b"]
    assert delta.partitions[key].after is None
    assert list(delta.partitions_on(delta.partitions[key].before.leader)) == [(key, delta.partitions[key])]
    assert world.image.topic("a.b") is None
    assert world.image.partitions_count == 0
    assert world.image.config(ConfigResourceType.TOPIC, "a.b") == {}
    second = world.create("a_b")
    assert second.outcome.ok
    assert second.topic_id != first


def test_deleting_what_is_not_there(world: ClusterWorld) -> None:
    decision = decide_delete_topics(world.image, [TopicId("bx16FDxfTGOdYy8fbft-Cg")])
    assert not decision
    assert decision.reply[0][1].error is ErrorCode.unknown_topic_id


def test_a_topic_and_its_partitions_are_one_entry() -> None:
    world = ClusterWorld(target=300).with_brokers(1, 2, 3)
    before = len(world.log)
    world.create(num_partitions=50, replication_factor=3)
    assert len(world.log) == before + 1
    assert world.image.partitions_count == 50


def test_more_partitions_than_an_entry_holds_are_refused(world: ClusterWorld) -> None:
    created = world.create(num_partitions=10_000, replication_factor=3)
    assert created.outcome.error is ErrorCode.policy_violation
    assert world.create(num_partitions=5_000, replication_factor=3).outcome.ok
    assert len(world.log[-1]) < 900_000


def test_k5_partitions_are_added_behind_those_there_are(world: ClusterWorld) -> None:
    world.create(num_partitions=2, replication_factor=2)
    before = [world.state(partition=p) for p in range(2)]
    (reply,) = world.enact(
        decide_create_partitions(world.image, [MorePartitions(name="t", count=5)], chance=world.chance)
    )
    assert reply[1].ok
    topic = world.image.topic("t")
    assert topic is not None
    assert topic.partitions[:2] == before
    assert len(topic.partitions) == 5
    assert {len(state.replicas) for state in topic.partitions} == {2}


@pytest.mark.parametrize(
    ("name", "count", "assignments", "error"),
    [
        ("none", 3, None, ErrorCode.unknown_topic_or_partition),
        ("t", 2, None, ErrorCode.invalid_partitions),
        ("t", 1, None, ErrorCode.invalid_partitions),
        ("t", -1, None, ErrorCode.invalid_partitions),
        ("t", 4, [[1, 2]], ErrorCode.invalid_replica_assignment),
        ("t", 3, [[1]], ErrorCode.invalid_replica_assignment),
        ("t", 3, [[1, 9]], ErrorCode.invalid_replica_assignment),
        ("t", 2**31 - 1, None, ErrorCode.policy_violation),
    ],
)
def test_partitions_that_cannot_be_added(
    world: ClusterWorld, name: str, count: int, assignments: list[list[int]] | None, error: ErrorCode
) -> None:
    world.create(num_partitions=2, replication_factor=2)
    decision = decide_create_partitions(
        world.image, [MorePartitions(name=name, count=count, assignments=assignments)], chance=world.chance
    )
    assert not decision
    assert decision.reply[0][1].error is error


def test_the_transaction_state_topic_gets_no_more_partitions(world: ClusterWorld) -> None:
    """Its number of partitions says which broker coordinates a transactional id."""
    world.create(TRANSACTION_STATE_TOPIC, num_partitions=2, replication_factor=2)
    wanted = [MorePartitions(name=TRANSACTION_STATE_TOPIC, count=3)]
    decision = decide_create_partitions(world.image, wanted, chance=world.chance)
    assert not decision
    assert decision.reply[0][1].error is ErrorCode.invalid_partitions


def test_added_partitions_follow_a_manual_assignment(world: ClusterWorld) -> None:
    world.create(num_partitions=1, replication_factor=2)
    decision = decide_create_partitions(
        world.image, [MorePartitions(name="t", count=2, assignments=[[3, 1]])], chance=world.chance
    )
    world.enact(decision)
    assert world.state(partition=1).replicas == (3, 1)
    again = [MorePartitions(name="t", count=3), MorePartitions(name="t", count=4)]
    refused = decide_create_partitions(world.image, again, chance=world.chance)
    assert [outcome.error for _, outcome in refused.reply] == [ErrorCode.invalid_request] * 2


def test_brokers_that_are_down_get_replicas_only_where_the_others_do_not_suffice(world: ClusterWorld) -> None:
    world.down(3)
    world.create("two", num_partitions=6, replication_factor=2)
    for index in range(6):
        assert 3 not in world.state("two", index).replicas
    world.create("three", num_partitions=6, replication_factor=3)
    for index in range(6):
        state = world.state("three", index)
        assert state.replicas[-1] == 3
        assert state.isr == state.replicas[:2]
        assert state.leader == state.replicas[0]
    record = next(
        record
        for record in decide_create_partitions(
            world.image, [MorePartitions(name="three", count=7)], chance=world.chance
        ).records
        if isinstance(record, PartitionCreated)
    )
    assert record.isr is not None


def test_a_broker_about_to_stop_gets_no_new_replicas(world: ClusterWorld) -> None:
    world.enact(decide_controlled_shutdown(world.image, BrokerId(2), world.epoch(2)))
    assert world.create(num_partitions=1, replication_factor=3).outcome.error is (
        ErrorCode.invalid_replication_factor
    )
    manual = world.create("manual", assignments={0: [2]})
    assert manual.outcome.error is ErrorCode.invalid_replica_assignment
    assert "in controlled shutdown" in (manual.outcome.message or "")


def test_without_live_brokers_there_is_no_topic() -> None:
    world = ClusterWorld()
    assert world.create().outcome.error is ErrorCode.invalid_replication_factor
    world.with_brokers(1).down(1)
    created = world.create()
    assert created.outcome.error is ErrorCode.invalid_replication_factor
    assert "fenced" in (created.outcome.message or "")


def test_an_entry_of_a_big_topic_stays_below_the_stores_limit(world: ClusterWorld) -> None:
    world.create(num_partitions=5_000, replication_factor=3)
    (entry,) = entries_of(
        [tuple(decide_delete_topics(world.image, [world.key().topic_id]).records)], world.image.controllership
    )
    assert len(encode_entry(entry)) < 300
