"""ForfeitReplicas: damage at rest costs a replica what it was trusted with, but no partition its leader."""

from __future__ import annotations

from cluster_harness import ClusterWorld

from nilometer.cluster.controller.isr_changes import decide_forfeit_replicas
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.wire.errors import ErrorCode


def forfeit(world: ClusterWorld, broker: int, epoch: BrokerEpoch | None = None) -> ErrorCode:
    broker_epoch = world.epoch(broker) if epoch is None else epoch
    decision = decide_forfeit_replicas(world.image, BrokerId(broker), broker_epoch, [world.key()])
    (reply,) = world.enact(decision)
    if not reply.outcome.ok:
        assert not decision
    return reply.outcome.error


def test_a_damaged_leader_resigns_and_leaves_the_isr(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    assert forfeit(world, 1) is ErrorCode.none
    state = world.state()
    assert (state.leader, state.isr, state.elr, state.leader_epoch) == (2, (2, 3), (), 1)


def test_a_damaged_follower_leaves_the_isr_under_a_new_epoch_of_the_same_leader(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    assert forfeit(world, 3) is ErrorCode.none
    state = world.state()
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, (1, 2), 1, 1)


def test_a_damaged_replica_that_is_not_in_sync_gets_a_new_epoch_too(world: ClusterWorld) -> None:
    """Its leader knows how far it had come, and would count on it."""
    world.topic([1, 2, 3])
    assert forfeit(world, 3) is ErrorCode.none
    assert forfeit(world, 3) is ErrorCode.none
    state = world.state()
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, (1, 2), 2, 2)


def test_below_min_insync_replicas_a_damaged_replica_is_not_eligible_either(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(3)
    assert forfeit(world, 1) is ErrorCode.none
    state = world.state()
    assert (state.leader, state.isr, state.elr) == (2, (2,), ())


def test_an_eligible_replica_takes_over_from_a_leader_alone_in_the_isr(world: ClusterWorld) -> None:
    world.topic([1, 2], min_isr=2)
    world.down(2)
    assert (world.state().isr, world.state().elr) == ((1,), (2,))
    assert forfeit(world, 1) is ErrorCode.eligible_leaders_not_available  # it is not there
    world.up(2, clean=True)
    assert forfeit(world, 1) is ErrorCode.none
    state = world.state()
    assert (state.leader, state.isr, state.elr) == (2, (2,), ())


def test_the_last_replica_that_has_every_record_keeps_its_place(world: ClusterWorld) -> None:
    world.topic([1, 2])
    world.down(2)
    before = world.state()
    assert forfeit(world, 1) is ErrorCode.eligible_leaders_not_available
    assert world.state() == before


def test_no_broker_forfeits_for_an_earlier_incarnation_or_without_a_replica(world: ClusterWorld) -> None:
    world.topic([1, 2])
    old = world.epoch(1)
    world.down(1)
    world.up(1)
    assert forfeit(world, 1, old) is ErrorCode.stale_broker_epoch
    assert forfeit(world, 3) is ErrorCode.invalid_request
