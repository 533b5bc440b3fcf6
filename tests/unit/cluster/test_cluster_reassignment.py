"""K-5: partitions move onto other brokers while clients work; internal topics grow with the cluster."""

from __future__ import annotations

import pytest
from cluster_harness import TOPIC_CONFIGS, ClusterWorld
from test_cluster_alter_partition import ask, request

from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.controller.reassignments import (
    Reassignment,
    decide_alter_reassignments,
    decide_elect_leaders,
    list_reassignments,
)
from nilometer.cluster.controller.topics import (
    TopicDefaults,
    decide_create_topics,
    decide_internal_topic_growth,
    internal_topic,
)
from nilometer.cluster.states import GROUP_METADATA_TOPIC, NAME_LENGTH_MAX
from nilometer.wire.errors import ErrorCode


@pytest.fixture
def wide() -> ClusterWorld:
    return ClusterWorld().with_brokers(1, 2, 3, 4, 5, 6)


def reassign(world: ClusterWorld, replicas: list[int] | None, **how: bool) -> Outcome:
    decision = decide_alter_reassignments(world.image, [Reassignment("t", 0, replicas)], **how)
    (reply,) = world.enact(decision)
    if not reply.outcome.ok:
        assert not decision
    return reply.outcome


def test_k5_a_partition_moves_once_its_new_replicas_are_in_sync(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    assert reassign(wide, [4, 5, 6]).ok
    state = wide.state()
    assert (state.replicas, state.adding, state.removing) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert (state.leader, state.isr) == (1, (1, 2, 3))
    assert [(found.topic, found.partition) for found in list_reassignments(wide.image)] == [("t", 0)]
    assert list_reassignments(wide.image, [("t", 1), ("none", 0)]) == []
    (named,) = list_reassignments(wide.image, [("none", 0), ("t", 0), ("t", 0)])
    assert (named.topic, named.partition, named.state) == ("t", 0, state)
    assert ask(wide, request(wide, [1, 2, 3, 4, 5])).outcome.ok
    assert wide.state().is_reassigning
    epoch = wide.state().leader_epoch
    completed = ask(wide, request(wide, [1, 2, 3, 4, 5, 6]))
    assert completed.outcome.error is ErrorCode.new_leader_elected
    state = wide.state()
    assert (state.replicas, state.isr, state.leader) == ((4, 5, 6), (4, 5, 6), 4)
    assert (state.adding, state.removing, state.leader_epoch) == ((), (), epoch + 1)
    assert list_reassignments(wide.image) == []
    assert wide.refold() == wide.image


def test_edge_25_kafka_9672_completion_takes_unassigned_replicas_out_of_the_isr(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    reassign(wide, [1, 4])
    epoch = wide.state().leader_epoch
    reply = ask(wide, request(wide, [1, 2, 3, 4]))
    assert reply.outcome.ok
    assert reply.state is not None
    # The leader stays, under a new epoch: what the departed fetch no longer counts.
    assert (reply.state.isr, reply.state.leader, reply.state.leader_epoch) == ((1, 4), 1, epoch + 1)
    assert ask(wide, request(wide, [1, 2, 4])).outcome.error is ErrorCode.invalid_request


def test_k5_a_mere_change_of_order_is_done_at_once(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    assert reassign(wide, [3, 1, 2]).ok
    state = wide.state()
    assert (state.replicas, state.is_reassigning, state.leader, state.leader_epoch) == (
        (3, 1, 2),
        False,
        1,
        0,
    )


def test_k5_fewer_replicas_are_done_at_once_where_the_rest_is_in_sync(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    assert reassign(wide, [3]).ok
    state = wide.state()
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((3,), (3,), 3, 1)


def test_k5_fewer_replicas_wait_for_one_that_is_not_in_sync(wide: ClusterWorld) -> None:
    wide.topic([1, 2])
    wide.down(2)
    assert reassign(wide, [2]).ok
    state = wide.state()
    assert (state.replicas, state.removing, state.isr, state.leader) == ((2, 1), (1,), (1,), 1)


def test_k5_calling_off_leads_back(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    assert reassign(wide, None).error is ErrorCode.no_reassignment_in_progress
    reassign(wide, [4, 5, 6])
    ask(wide, request(wide, [1, 2, 3, 4]))
    assert reassign(wide, None).ok
    state = wide.state()
    assert (state.replicas, state.isr, state.leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert not state.is_reassigning


def test_k5_calling_off_waits_while_only_a_new_replica_has_all_records(wide: ClusterWorld) -> None:
    """The last leader is a new replica: none of the former ones can lead without loss until it returns."""
    wide.topic([1, 2], min_isr=2)
    reassign(wide, [4, 5])
    assert ask(wide, request(wide, [1, 2, 4])).outcome.ok
    for broker in (2, 1, 4):
        wide.down(broker)
    state = wide.state()
    assert (state.leader, state.last_known_leader, state.isr, state.elr) == (-1, 4, (4,), (1,))
    assert reassign(wide, None).error is ErrorCode.invalid_replica_assignment


def test_k5_a_reassignment_replaced_by_another_still_leads_back_to_the_original(wide: ClusterWorld) -> None:
    wide.topic([1, 2])
    reassign(wide, [3, 4])
    ask(wide, request(wide, [1, 2, 3]))
    assert reassign(wide, [5, 6]).ok
    state = wide.state()
    assert state.target_replicas == (5, 6)
    assert sorted(state.original_replicas) == [1, 2]
    assert state.isr == (1, 2, 3)
    assert reassign(wide, None).ok
    assert (sorted(wide.state().replicas), wide.state().isr) == ([1, 2], (1, 2))


def test_k5_calling_off_must_not_lose_what_only_the_new_replicas_have(wide: ClusterWorld) -> None:
    wide.topic([1])
    reassign(wide, [4, 5])
    ask(wide, request(wide, [1, 4]))
    wide.down(1)
    assert (wide.state().leader, wide.state().isr) == (4, (4,))
    assert wide.state().elr == ()
    refused = reassign(wide, None)
    assert refused.error is ErrorCode.invalid_replica_assignment
    assert "unclean" in (refused.message or "")


def test_edge_24_calling_off_uncleanly_where_that_is_allowed_is_counted(wide: ClusterWorld) -> None:
    wide.topic([1, 2], unclean=True)
    reassign(wide, [4, 5])
    ask(wide, request(wide, [1, 4]))
    wide.down(1)
    assert reassign(wide, None).ok
    assert (wide.state().leader, wide.state().isr, wide.state().replicas) == (2, (2,), (1, 2))
    assert wide.image.unclean_elections == 1


@pytest.mark.parametrize(
    ("topic", "partition", "replicas", "error"),
    [
        ("none", 0, [1], ErrorCode.unknown_topic_or_partition),
        ("t", 3, [1], ErrorCode.unknown_topic_or_partition),
        ("t", 0, [], ErrorCode.invalid_replica_assignment),
        ("t", 0, [1, 1], ErrorCode.invalid_replica_assignment),
        ("t", 0, [1, 77], ErrorCode.invalid_replica_assignment),
        ("t", 0, [-1], ErrorCode.invalid_replica_assignment),
    ],
)
def test_reassignments_that_cannot_be(
    wide: ClusterWorld, topic: str, partition: int, replicas: list[int], error: ErrorCode
) -> None:
    wide.topic([1, 2, 3])
    decision = decide_alter_reassignments(wide.image, [Reassignment(topic, partition, replicas)])
    assert not decision
    assert decision.reply[0].outcome.error is error


def test_the_replication_factor_may_be_kept(wide: ClusterWorld) -> None:
    wide.topic([1, 2, 3])
    refused = reassign(wide, [1, 2], allow_replication_factor_change=False)
    assert refused.error is ErrorCode.invalid_replication_factor
    assert reassign(wide, [4, 2, 3], allow_replication_factor_change=False).ok


def test_a_partition_reassigned_twice_in_one_request_is_refused(wide: ClusterWorld) -> None:
    wide.topic([1])
    twice = [Reassignment("t", 0, [2]), Reassignment("t", 0, [3])]
    decision = decide_alter_reassignments(wide.image, twice)
    assert not decision
    assert {reply.outcome.error for reply in decision.reply} == {ErrorCode.invalid_request}


def create_offsets_topic(world: ClusterWorld) -> None:
    wanted = internal_topic(
        world.image,
        GROUP_METADATA_TOPIC,
        num_partitions=6,
        replication_factor=3,
        configs={"cleanup.policy": "compact", "min.insync.replicas": "2"},
    )
    decision = decide_create_topics(
        world.image, [wanted], config_definition=TOPIC_CONFIGS, chance=world.chance, defaults=TopicDefaults()
    )
    (created,) = world.enact(decision)
    assert created.outcome.ok


def test_edge_44_an_internal_topic_fits_a_small_cluster_and_grows_with_it() -> None:
    world = ClusterWorld().with_brokers(1)
    create_offsets_topic(world)
    topic = world.image.topic(GROUP_METADATA_TOPIC)
    assert topic is not None
    assert topic.is_internal
    assert {state.replicas for state in topic.partitions} == {(1,)}
    assert not decide_internal_topic_growth(world.image, GROUP_METADATA_TOPIC, 3)
    world.with_brokers(2, 3, 4)
    world.enact(decide_internal_topic_growth(world.image, GROUP_METADATA_TOPIC, 3))
    for state in topic.partitions:
        assert len(state.replicas) == 3
        assert len(state.adding) == 2
        assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 0)
    spread = [len(world.image.partitions_on(broker.id)) for broker in world.image.brokers()]
    assert spread == [6, 4, 4, 4]
    assert not decide_internal_topic_growth(world.image, GROUP_METADATA_TOPIC, 3)
    assert not decide_internal_topic_growth(world.image, "not there", 3)


def test_the_message_of_each_partition_quotes_no_more_of_a_name_than_a_topic_can_have(
    wide: ClusterWorld,
) -> None:
    """A request of 68 kB may name 9,000 partitions of one topic."""
    name = "n" * 32_000
    moved = [Reassignment(name, 0, [1]), Reassignment(name, 1, [1]), Reassignment(name, 1, [2])]
    partitions = [(name, index) for index in range(3)]
    outcomes = [one.outcome for one in wide.enact(decide_alter_reassignments(wide.image, moved))]
    outcomes += [one.outcome for one in wide.enact(decide_elect_leaders(wide.image, 0, partitions))]
    assert [outcome.ok for outcome in outcomes] == [False] * 6
    assert all(len(outcome.message or "") < NAME_LENGTH_MAX + 100 for outcome in outcomes)
