"""A replica whose log directory failed: another one leads, until the broker registers with it again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import decide_broker_up
from nilometer.cluster.controller.isr_changes import (
    IsrChange,
    IsrMember,
    decide_alter_partitions,
    decide_forfeit_replicas,
)
from nilometer.cluster.controller.reassignments import (
    ElectionType,
    Reassignment,
    decide_alter_reassignments,
    decide_elect_leaders,
)
from nilometer.cluster.records import RecoveryState
from nilometer.cluster.states import PartitionState
from nilometer.identifiers import NO_LEADER, BrokerEpoch, BrokerId, TopicId
from nilometer.invariants import InvariantBroken
from nilometer.wire.errors import ErrorCode


def offline(world: ClusterWorld, broker: int) -> None:
    decision = decide_forfeit_replicas(
        world.image, BrokerId(broker), world.epoch(broker), [world.key()], offline=True
    )
    (reply,) = world.enact(decision)
    assert reply.outcome.ok, reply.outcome
    assert world.refold() == world.image


def come_back(
    world: ClusterWorld, broker: int, *, still_offline: bool = False, clean: bool = False, **how: object
) -> None:
    registration = world.registration(broker, clean=clean, **how)  # type: ignore[arg-type]
    if still_offline:
        key = world.key()
        registration = replace(registration, failed_dirs=1, offline={TopicId(key.topic_id): (key.partition,)})
    assert world.enact(decide_broker_up(world.image, registration)).ok
    world.last_epoch[broker] = world.epoch(broker)


def test_leadership_moves_at_once_and_the_replica_leaves_the_isr(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    offline(world, 1)
    state = world.state()
    assert (state.leader, state.isr, state.offline, state.leader_epoch) == (2, (2, 3), (1,), 1)
    assert world.image.is_active(BrokerId(1)), "its broker goes on with its other directories"


def test_a_follower_leaves_the_isr_and_is_not_elected(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    offline(world, 2)
    assert (world.state().leader, world.state().isr, world.state().offline) == (1, (1, 3), (2,))
    world.down(1)
    assert (world.state().leader, world.state().isr) == (3, (3,))
    world.down(3)
    assert world.state().leader == NO_LEADER
    assert world.state().isr == (3,)


def test_below_min_insync_replicas_it_is_not_eligible_either(world: ClusterWorld) -> None:
    world.topic([1, 2], min_isr=2)
    offline(world, 2)
    assert (world.state().isr, world.state().elr) == ((1,), ())


def test_the_last_member_of_the_isr_leaves_the_partition_without_a_leader(world: ClusterWorld) -> None:
    world.topic([1, 2])
    world.down(2)
    world.up(2)
    offline(world, 1)
    state = world.state()
    assert (state.leader, state.isr, state.offline) == (NO_LEADER, (1,), (1,))
    assert state.recovery_state is RecoveryState.RECOVERED
    (elected,) = world.enact(decide_elect_leaders(world.image, ElectionType.PREFERRED, [("t", 0)]))
    assert elected.outcome.error is ErrorCode.preferred_leader_not_available


def test_it_comes_back_with_the_next_registration_of_its_broker(world: ClusterWorld) -> None:
    world.topic([1, 2])
    offline(world, 1)
    world.down(1)
    come_back(world, 1, clean=True)
    state = world.state()
    assert (state.leader, state.isr, state.offline) == (2, (2,), ())


def test_what_comes_back_does_not_pass_for_whole(world: ClusterWorld) -> None:
    """Even where its broker claims so: a disk that failed may have lost what was acknowledged."""
    world.topic([1, 2])
    world.down(2)
    offline(world, 1)
    world.down(1)
    come_back(world, 1, clean=True)
    state = world.state()
    assert (state.leader, state.recovery_state) == (1, RecoveryState.RECOVERING)
    assert world.image.last_known_elections == 1


def test_a_registration_that_still_misses_it_keeps_it_offline(world: ClusterWorld) -> None:
    world.topic([1, 2])
    offline(world, 1)
    world.down(1)
    come_back(world, 1, still_offline=True)
    assert (world.state().leader, world.state().isr, world.state().offline) == (2, (2,), (1,))
    world.down(2)
    assert world.state().leader == NO_LEADER


def test_a_directory_found_broken_at_the_start_is_offline_from_the_registration_on(
    world: ClusterWorld,
) -> None:
    world.topic([1])
    world.down(1)
    come_back(world, 1, still_offline=True, clean=True)
    assert (world.state().leader, world.state().isr, world.state().offline) == (NO_LEADER, (1,), (1,))


def test_a_failed_directory_is_not_a_lost_one_but_an_empty_one_in_its_place_is(world: ClusterWorld) -> None:
    world.topic([1])
    world.down(1)
    come_back(world, 1, still_offline=True, dirs=())  # it could not even be read
    broker = world.image.broker(BrokerId(1))
    assert broker is not None
    assert broker.log_dirs == ("dir-1",)
    assert world.state().last_known_leader == 1
    world.down(1)
    come_back(world, 1, dirs=("a-new-disk",))
    assert world.state().leader == NO_LEADER, "an empty log must not pass for all there was"
    assert world.state().last_known_leader == NO_LEADER


def test_no_leader_can_bring_it_into_the_isr(world: ClusterWorld) -> None:
    world.topic([1, 2])
    offline(world, 2)
    state = world.state()
    request = IsrChange(
        partition=world.key(),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr=(IsrMember(BrokerId(1)), IsrMember(BrokerId(2))),
    )
    (altered,) = world.enact(decide_alter_partitions(world.image, BrokerId(1), world.epoch(1), [request]))
    assert altered.outcome.error is ErrorCode.ineligible_replica


def test_asked_again_nothing_changes_and_an_earlier_incarnation_is_refused(world: ClusterWorld) -> None:
    world.topic([1, 2])
    offline(world, 1)
    key, epoch = world.key(), world.epoch(1)
    assert not decide_forfeit_replicas(world.image, BrokerId(1), epoch, [key], offline=True)
    stale = decide_forfeit_replicas(world.image, BrokerId(2), BrokerEpoch(0), [key], offline=True)
    assert not stale
    assert stale.reply[0].outcome.error is ErrorCode.stale_broker_epoch


def test_a_replica_that_is_reassigned_away_is_not_offline_any_more(world: ClusterWorld) -> None:
    world.topic([1, 2])
    offline(world, 1)
    world.enact(decide_alter_reassignments(world.image, [Reassignment("t", 0, (BrokerId(2),))]))
    assert (world.state().replicas, world.state().offline) == ((2,), ())


def test_an_offline_replica_never_leads() -> None:
    with pytest.raises(InvariantBroken, match="offline replica leads"):
        PartitionState((BrokerId(1),), (BrokerId(1),), BrokerId(1), offline=(BrokerId(1),)).check()
