"""AlterPartition: every way a leader can be wrong (E-13, E-15, E-17, E-19, E-21, E-25)."""

from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import decide_controlled_shutdown
from nilometer.cluster.controller.decision import Outcome
from nilometer.cluster.controller.isr_changes import (
    AlteredPartition,
    IsrChange,
    IsrMember,
    decide_alter_partitions,
)
from nilometer.cluster.records import RecoveryState
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.wire.errors import ErrorCode


def request(world: ClusterWorld, isr: list[int], **changes: object) -> IsrChange:
    state = world.state()
    fields: dict[str, object] = {
        "partition": world.key(),
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "new_isr": tuple(
            IsrMember(BrokerId(b), world.image.broker_epoch(BrokerId(b)) or world.epoch(1)) for b in isr
        ),
    }
    return IsrChange(**{**fields, **changes})  # type: ignore[arg-type]


def ask(world: ClusterWorld, asked: IsrChange, broker: int = 1) -> AlteredPartition:
    decision = decide_alter_partitions(world.image, BrokerId(broker), world.epoch(broker), [asked])
    (reply,) = world.enact(decision)
    if not reply.outcome.ok and reply.outcome.error is not ErrorCode.new_leader_elected:
        assert not decision
    return reply


def test_r6_the_isr_shrinks_and_grows_at_the_leaders_word(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    shrunk = ask(world, request(world, [1, 3]))
    assert shrunk.outcome.ok
    assert shrunk.state == world.state()
    assert (world.state().isr, world.state().leader_epoch, world.state().partition_epoch) == ((1, 3), 0, 1)
    grown = ask(world, request(world, [1, 3, 2]))
    assert grown.outcome.ok
    assert (world.state().isr, world.state().leader_epoch, world.state().partition_epoch) == ((1, 3, 2), 0, 2)


def test_edge_22_a_shrink_below_min_insync_replicas_remembers_who_was_safe(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    assert ask(world, request(world, [1])).outcome.ok
    assert (world.state().isr, world.state().elr) == ((1,), (2, 3))
    assert ask(world, request(world, [1, 3])).outcome.ok
    assert (world.state().isr, world.state().elr) == ((1, 3), ())


def test_edge_13_requests_of_a_brokers_earlier_incarnation_are_refused(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    asked = request(world, [1])
    old = world.epoch(1)
    world.down(1)
    fenced = decide_alter_partitions(world.image, BrokerId(1), old, [asked])
    assert fenced.reply[0].outcome.error is ErrorCode.stale_broker_epoch
    world.up(1)
    stale = decide_alter_partitions(world.image, BrokerId(1), old, [asked])
    assert stale.reply[0].outcome.error is ErrorCode.stale_broker_epoch
    assert not stale


def test_edge_13_kafka_9839_a_newer_broker_epoch_means_that_the_controller_lags(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    newer = world.epoch(1) + 1
    decision = decide_alter_partitions(world.image, BrokerId(1), newer, [request(world, [1])])  # type: ignore[arg-type]
    assert decision.reply[0].outcome.error is ErrorCode.not_controller


def test_edge_15_a_replica_asked_for_is_electable_exactly_when_it_is_committed(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    assert ask(world, request(world, [1, 2])).outcome.ok
    pending = request(world, [1, 2, 3])
    world.down(2)
    # The request was in flight while the state moved on: it is not a compare that still holds.
    assert ask(world, pending).outcome.error is ErrorCode.invalid_update_version
    world.down(1)
    assert (world.state().leader, world.state().isr) == (-1, (1,))


def test_edge_15_a_committed_addition_may_lead(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    ask(world, request(world, [1, 2]))
    ask(world, request(world, [1, 2, 3]))
    world.down(1, 2)
    assert (world.state().leader, world.state().isr) == (3, (3,))


def test_edge_17_a_repeated_request_whose_answer_was_lost_succeeds(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    asked = request(world, [1, 3])
    assert ask(world, asked).outcome.ok
    before = world.image.number
    again = ask(world, asked)
    assert again.outcome.ok
    assert again.state is not None
    assert again.state.partition_epoch == asked.partition_epoch + 1
    assert world.image.number == before


def test_edge_17_a_stale_leader_is_fenced(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    asked = request(world, [1])
    world.down(1)
    world.up(1)
    assert ask(world, asked).outcome.error is ErrorCode.fenced_leader_epoch
    forged = request(world, [1, 2])
    assert ask(world, forged).outcome.error is ErrorCode.invalid_request  # broker 2 leads this epoch


@pytest.mark.parametrize("field", ["leader_epoch", "partition_epoch"])
def test_edge_17_a_leader_that_knows_more_asks_for_the_active_controller(
    world: ClusterWorld, field: str
) -> None:
    world.topic([1, 2, 3])
    assert ask(world, request(world, [1], **{field: 5})).outcome.error is ErrorCode.not_controller


def test_edge_19_kip_841_a_fenced_replica_is_not_eligible(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    world.down(3)
    reply = ask(world, request(world, [1, 2, 3]))
    assert reply.outcome.error is ErrorCode.ineligible_replica
    assert "3 (fenced)" in (reply.outcome.message or "")
    assert world.state().isr == (1, 2)


def test_edge_19_neither_is_one_about_to_stop(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    world.enact(decide_controlled_shutdown(world.image, BrokerId(3), world.epoch(3)))
    assert world.state().isr == (1, 2)
    reply = ask(world, request(world, [1, 2, 3]))
    assert reply.outcome.error is ErrorCode.ineligible_replica
    assert "3 (shutting down)" in (reply.outcome.message or "")


def test_edge_21_kip_903_a_replica_that_restarted_meanwhile_is_not_eligible(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    world.down(3)
    world.up(3)
    asked = request(world, [1, 2, 3])
    world.down(3)
    world.up(3)  # with an empty disk, for all the leader knows
    reply = ask(world, asked)
    assert reply.outcome.error is ErrorCode.ineligible_replica
    assert "broker epoch" in (reply.outcome.message or "")
    assert ask(world, request(world, [1, 2, 3])).outcome.ok


def test_edge_21_a_member_without_an_epoch_is_taken_on_trust(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    ask(world, request(world, [1]))
    members = tuple(IsrMember(BrokerId(b)) for b in (1, 2))
    assert ask(world, request(world, [1], new_isr=members)).outcome.ok
    assert world.state().isr == (1, 2)


def test_edge_25_kafka_9672_a_replica_that_is_not_assigned_does_not_join(world: ClusterWorld) -> None:
    world.topic([1, 2])
    assert ask(world, request(world, [1, 2, 3])).outcome.error is ErrorCode.invalid_request


@pytest.mark.parametrize("isr", [[], [2], [2, 3], [1, 1], [1, 2, 2]])
def test_an_isr_that_cannot_be_is_refused(world: ClusterWorld, isr: list[int]) -> None:
    world.topic([1, 2, 3])
    assert ask(world, request(world, isr)).outcome.error is ErrorCode.invalid_request


def test_what_is_not_there_cannot_be_altered(world: ClusterWorld) -> None:
    world.topic([1])
    unknown = TopicIdPartition(TopicId("bx16FDxfTGOdYy8fbft-Cg"), 0)
    assert ask(world, request(world, [1], partition=unknown)).outcome.error is ErrorCode.unknown_topic_id
    beyond = world.key()._replace(partition=7)
    reply = ask(world, request(world, [1], partition=beyond))
    assert reply.outcome.error is ErrorCode.unknown_topic_or_partition
    unregistered = decide_alter_partitions(world.image, BrokerId(9), world.epoch(1), [request(world, [1])])
    assert unregistered.reply[0].outcome.error is ErrorCode.broker_id_not_registered


def test_a_partition_named_twice_is_refused(world: ClusterWorld) -> None:
    world.topic([1, 2])
    asked = request(world, [1])
    decision = decide_alter_partitions(world.image, BrokerId(1), world.epoch(1), [asked, asked])
    assert not decision
    assert {reply.outcome for reply in decision.reply} == {
        Outcome(
            ErrorCode.invalid_request,
            f"Partition 0 of topic id {asked.partition.topic_id} appears more than once in the request.",
        )
    }


def test_a_recovering_leader_confirms_its_log_before_others_join(world: ClusterWorld) -> None:
    world.topic([1, 2], unclean=True)
    world.down(1)
    world.up(1)
    world.down(2)
    assert (world.state().leader, world.state().recovery_state) == (1, RecoveryState.RECOVERING)
    world.up(2)
    early = request(world, [1, 2], recovery_state=RecoveryState.RECOVERING)
    assert ask(world, early).outcome.error is ErrorCode.invalid_request
    confirmed = ask(world, request(world, [1]))
    assert confirmed.outcome.ok
    assert world.state().recovery_state is RecoveryState.RECOVERED
    back = request(world, [1], recovery_state=RecoveryState.RECOVERING)
    assert ask(world, back).outcome.error is ErrorCode.invalid_request
    assert ask(world, request(world, [1, 2])).outcome.ok
