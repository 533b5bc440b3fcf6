"""Who leads: K-3, R-6, R-9, R-11, and the last replica standing (E-22, E-24)."""

from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import (
    decide_broker_up,
    decide_brokers_down,
    decide_controlled_shutdown,
    decide_unregister_broker,
)
from nilometer.cluster.controller.controllership import decide_repair
from nilometer.cluster.controller.decision import Refusal
from nilometer.cluster.controller.reassignments import (
    decide_elect_leaders,
    decide_preferred_leaders,
    preferred_imbalance,
)
from nilometer.cluster.entries import decode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    BrokerInControlledShutdown,
    BrokerRegistered,
    Election,
    PartitionChanged,
    RecoveryState,
)
from nilometer.identifiers import BrokerId
from nilometer.steps import at_once
from nilometer.wire.errors import ErrorCode


def summary(world: ClusterWorld) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    state = world.state()
    return state.leader, state.isr, state.elr


def test_k3_r11_the_first_live_isr_member_in_assignment_order_leads_next(world: ClusterWorld) -> None:
    world.topic([2, 3, 1])
    assert world.state().leader == 2
    world.down(2)
    assert summary(world) == (3, (3, 1), ())
    assert (world.state().leader_epoch, world.state().partition_epoch) == (1, 1)


def test_k3_a_lost_follower_leaves_the_isr_and_the_leader_keeps_its_epoch(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    world.down(2)
    assert summary(world) == (1, (1, 3), ())
    assert (world.state().leader_epoch, world.state().partition_epoch) == (0, 1)


def test_k3_a_broker_back_gives_its_partitions_a_leader(world: ClusterWorld) -> None:
    world.topic([2])
    world.create("other", assignments={0: [1, 3]})
    world.down(2)
    assert summary(world) == (-1, (2,), ())
    assert world.state().leader_epoch == 1
    world.up(2, clean=True)
    assert summary(world) == (2, (2,), ())
    assert world.state().leader_epoch == 2
    assert world.image.last_known_elections == 0
    assert world.state("other").partition_epoch == 0


def test_r6_a_replica_outside_the_isr_does_not_lead(world: ClusterWorld) -> None:
    world.topic([1, 2])
    world.down(1)
    world.up(1, clean=True)
    assert summary(world) == (2, (2,), ())
    world.down(2)
    assert summary(world) == (-1, (2,), ())
    world.enact(decide_repair(world.image))
    assert world.state().leader == -1


def test_r9_every_change_of_leadership_has_an_epoch_of_its_own(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    leaders: dict[int, set[int]] = {}
    for broker in (1, 2, 3):
        world.down(broker)
        world.up(broker, clean=True)
    for data in world.log:
        for record in decode_entry(data).records:
            if isinstance(record, PartitionChanged) and record.leader_epoch is not None:
                leaders.setdefault(record.leader_epoch, set()).add(record.leader or -1)
    assert all(len(found) == 1 for found in leaders.values())
    assert sorted(leaders) == list(range(1, world.state().leader_epoch + 1))


def test_k3_simultaneous_failures_elect_no_failed_replica(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    decision = decide_brokers_down(world.image, [BrokerId(b) for b in (1, 2, 3)])
    changes = [record for record in decision.records if isinstance(record, PartitionChanged)]
    assert [change.leader for change in changes] == [-1]
    world.enact(decision)
    assert summary(world) == (-1, (1,), (2, 3))
    assert world.state().last_known_leader == 1


def test_edge_22_last_replica_standing_loses_its_tail_and_does_not_lead(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    assert summary(world) == (3, (3,), (2,))
    world.down(3)
    assert summary(world) == (-1, (3,), (2,))
    world.up(3)  # without a clean shutdown: what it had alone may be gone
    assert summary(world) == (-1, (2,), ())
    world.up(2, clean=True)
    assert summary(world) == (2, (2,), ())
    assert world.state().recovery_state is RecoveryState.RECOVERED
    assert (world.image.unclean_elections, world.image.last_known_elections) == (0, 0)


def test_edge_22_an_eligible_replica_that_is_alive_leads_at_once(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    world.up(2, clean=True)
    assert summary(world) == (3, (3,), (2,))
    world.down(3)
    assert summary(world) == (2, (2,), (3,))
    record = next(r for r in reversed(decode_entry(world.log[-1]).records) if isinstance(r, PartitionChanged))
    assert record.election is Election.ELIGIBLE
    assert (world.image.unclean_elections, world.image.last_known_elections) == (0, 0)


def test_edge_22_with_a_clean_shutdown_the_last_replica_leads_again(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    for broker in (1, 2, 3):
        world.enact(decide_controlled_shutdown(world.image, BrokerId(broker), world.epoch(broker)))
        world.down(broker)
    assert summary(world) == (-1, (3,), (2,))
    world.up(3, clean=True)
    assert summary(world) == (3, (3,), (2,))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (2, 1, 3)])
def test_edge_22_kill_of_all_at_once_comes_back_by_itself(
    world: ClusterWorld, order: tuple[int, ...]
) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1, 2, 3)
    for broker in order:
        world.up(broker)
    assert world.state().leader == 1  # the leader when all died: no leader can have acknowledged more
    assert world.state().isr == (1,)
    assert world.state().elr == ()
    assert world.state().recovery_state is RecoveryState.RECOVERING
    assert (world.image.unclean_elections, world.image.last_known_elections) == (0, 1)


@pytest.mark.parametrize("min_isr", [1, 2, 3])
def test_edge_22_kill_of_all_one_after_the_other_comes_back_by_itself(
    world: ClusterWorld, min_isr: int
) -> None:
    world.topic([1, 2, 3], min_isr=min_isr)
    for broker in (1, 2, 3):
        world.down(broker)
    for broker in (1, 2, 3):
        world.up(broker)
    assert world.state().leader == 3
    assert world.image.last_known_elections == 1


def test_edge_22_a_single_broker_killed_comes_back(world: ClusterWorld) -> None:
    world.topic([1])
    world.down(1)
    world.up(1)
    assert summary(world) == (1, (1,), ())
    assert world.image.last_known_elections == 1


def test_edge_22_the_clean_shutdown_must_be_that_of_the_last_incarnation(world: ClusterWorld) -> None:
    world.topic([1, 2], min_isr=2)
    before = world.epoch(1)
    world.down(1)
    assert summary(world) == (2, (2,), (1,))
    world.up(1, clean=True)
    assert world.state().elr == (1,)
    world.down(1)
    world.last_epoch[1] = before
    world.up(1, clean=True)  # a marker left over from the incarnation before last
    assert world.state().elr == ()


def test_edge_22_a_broker_whose_disk_is_gone_is_not_even_the_last_known_leader(world: ClusterWorld) -> None:
    world.topic([1, 2], min_isr=1)
    world.down(2)
    world.down(1)
    world.up(1, dirs=["a new disk"])
    assert summary(world) == (-1, (1,), ())
    assert world.state().last_known_leader == -1
    world.up(2)
    assert world.state().leader == -1
    # Only an operator who accepts the loss can say which copy is to be the truth.
    decision = decide_elect_leaders(world.image, 1, [("t", 0)])
    world.enact(decision)
    assert decision.reply[0].outcome.ok
    assert world.state().has_leader
    assert world.image.unclean_elections == 1


def test_edge_22_what_is_forfeited_is_written_before_the_registration(world: ClusterWorld) -> None:
    """A controller that dies between the two leaves a broker unregistered, not one wrongly trusted."""
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    decision = decide_broker_up(world.image, world.registration(2))
    kinds = [type(record) for record in decision.records]
    assert kinds == [PartitionChanged, BrokerRegistered]


def test_edge_22_interrupted_anywhere_an_unclean_restart_is_never_trusted() -> None:
    for entries in range(8):
        world = ClusterWorld(target=600).with_brokers(1, 2, 3)
        world.create(assignments=dict.fromkeys(range(6), (1, 2, 3)), configs={"min.insync.replicas": "2"})
        world.down(1)
        world.down(2)
        world.down(3)
        registration = world.registration(2)
        world.enact(decide_broker_up(world.image, registration), entries_max=entries)
        world.become_controller(1)
        world.enact(decide_broker_up(world.image, registration))
        world.enact(decide_repair(world.image))
        for _, state in world.image.partitions():
            assert (state.leader, state.isr, state.elr) == (-1, (3,), ())


def test_edge_24_no_unclean_election_by_default(world: ClusterWorld) -> None:
    world.topic([1, 2])
    world.down(2)
    world.up(2)
    world.down(1)
    assert summary(world) == (-1, (1,), ())
    assert world.image.unclean_elections == 0


def test_edge_24_unclean_elections_happen_where_allowed_and_are_counted(world: ClusterWorld) -> None:
    world.topic([1, 2], unclean=True)
    world.down(2)
    world.up(2)
    world.down(1)
    assert summary(world) == (2, (2,), ())
    assert world.state().recovery_state is RecoveryState.RECOVERING
    assert world.image.unclean_elections == 1
    assert world.refold().unclean_elections == 1
    assert ClusterImage.from_snapshot(world.image.snapshot()).unclean_elections == 1


def test_k3_controlled_shutdown_moves_leaders_first(world: ClusterWorld) -> None:
    world.create(num_partitions=6, replication_factor=3)
    decision = decide_controlled_shutdown(world.image, BrokerId(1), world.epoch(1))
    assert decision.reply.outcome.ok
    assert decision.reply.leaderships == 2
    assert isinstance(next(decision.records), BrokerInControlledShutdown)
    world.enact(decision)
    assert world.image.broker(BrokerId(1)) in world.image.live_brokers()
    for _, state in world.image.partitions():
        assert state.leader != 1
        assert 1 not in state.isr
    again = decide_controlled_shutdown(world.image, BrokerId(1), world.epoch(1))
    assert not again
    assert again.reply.leaderships == 0
    epochs = [state.leader_epoch for _, state in world.image.partitions()]
    world.down(1)
    assert [state.leader_epoch for _, state in world.image.partitions()] == epochs


def test_controlled_shutdown_of_another_incarnation_is_refused(world: ClusterWorld) -> None:
    old = world.epoch(1)
    world.down(1)
    stale = decide_controlled_shutdown(world.image, BrokerId(1), old)
    assert stale.reply.outcome.error is ErrorCode.stale_broker_epoch
    world.up(1)
    for epoch, error in ((old, ErrorCode.stale_broker_epoch), (10**6, ErrorCode.not_controller)):
        decision = decide_controlled_shutdown(world.image, BrokerId(1), epoch)  # type: ignore[arg-type]
        assert not decision
        assert decision.reply.outcome.error is error
    unknown = decide_controlled_shutdown(world.image, BrokerId(9), old)
    assert unknown.reply.outcome.error is ErrorCode.broker_id_not_registered


def test_preferred_leaders_return_when_asked_and_by_themselves(world: ClusterWorld) -> None:
    from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions

    world.topic([1, 2])
    world.down(1)
    world.up(1, clean=True)
    assert at_once(preferred_imbalance(world.image)) == {1: (1, 1)}
    unready = decide_elect_leaders(world.image, 0, [("t", 0)])
    assert unready.reply[0].outcome.error is ErrorCode.preferred_leader_not_available
    assert not decide_preferred_leaders(world.image)
    state = world.state()
    rejoin = IsrChange(
        partition=world.key(),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr=(IsrMember(BrokerId(2)), IsrMember(BrokerId(1))),
    )
    world.enact(decide_alter_partitions(world.image, BrokerId(2), world.epoch(2), [rejoin]))
    assert world.state().leader == 2
    assert not decide_preferred_leaders(world.image, imbalance_percentage=100)
    asked = decide_elect_leaders(world.image, 0, None)
    assert [(found.topic, found.outcome.ok) for found in asked.reply] == [("t", True)]
    world.enact(decide_preferred_leaders(world.image))
    assert world.state().leader == 1
    assert decide_elect_leaders(world.image, 0, None).reply == ()
    needless = decide_elect_leaders(world.image, 0, [("t", 0)])
    assert needless.reply[0].outcome.error is ErrorCode.election_not_needed


def test_preferred_elections_come_in_bounded_rounds(world: ClusterWorld) -> None:
    world.create(assignments=dict.fromkeys(range(5), (1, 2)))
    world.down(1)
    world.up(1, clean=True)
    for partition in range(5):
        rejoin(world, partition)
    rounds = 0
    while (decision := decide_preferred_leaders(world.image, limit=2)).reply:
        world.enact(decision)
        rounds += 1
    world.enact(decision)
    assert rounds == 2
    assert all(state.leader == 1 for _, state in world.image.partitions())


def rejoin(world: ClusterWorld, partition: int) -> None:
    from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions

    state = world.state(partition=partition)
    request = IsrChange(
        partition=world.key(partition=partition),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr=tuple(IsrMember(r) for r in state.replicas),
    )
    reply = world.enact(
        decide_alter_partitions(world.image, state.leader, world.epoch(state.leader), [request])
    )
    assert reply[0].outcome.ok


@pytest.mark.parametrize(
    ("kind", "partition", "error"),
    [
        (0, ("none", 0), ErrorCode.unknown_topic_or_partition),
        (0, ("t", 7), ErrorCode.unknown_topic_or_partition),
        (0, ("t", -1), ErrorCode.unknown_topic_or_partition),
        (1, ("t", 0), ErrorCode.election_not_needed),
    ],
)
def test_elections_that_cannot_be(
    world: ClusterWorld, kind: int, partition: tuple[str, int], error: ErrorCode
) -> None:
    world.topic([1, 2])
    decision = decide_elect_leaders(world.image, kind, [partition])
    assert not decision
    assert decision.reply[0].outcome.error is error


def test_an_unknown_kind_of_election_is_refused(world: ClusterWorld) -> None:
    with pytest.raises(Refusal, match="Unknown election type 7"):
        decide_elect_leaders(world.image, 7, None)


def test_unclean_election_on_request_needs_a_live_replica(world: ClusterWorld) -> None:
    world.topic([1])
    world.down(1)
    decision = decide_elect_leaders(world.image, 1, [("t", 0)])
    assert not decision
    assert decision.reply[0].outcome.error is ErrorCode.eligible_leaders_not_available


def test_an_unregistered_broker_is_not_waited_for(world: ClusterWorld) -> None:
    world.topic([1, 2, 3], min_isr=2)
    world.down(1)
    world.down(2)
    assert world.state().elr == (2,)
    assert world.enact(decide_unregister_broker(world.image, BrokerId(2))).ok
    assert world.image.broker(BrokerId(2)) is None
    assert world.state().elr == ()
    assert world.enact(decide_unregister_broker(world.image, BrokerId(3))).ok
    assert world.state().leader == -1
    assert world.state().last_known_leader == -1
    missing = decide_unregister_broker(world.image, BrokerId(3))
    assert missing.reply.error is ErrorCode.broker_id_not_registered


def test_a_duplicate_broker_is_refused(world: ClusterWorld) -> None:
    decision = decide_broker_up(world.image, world.registration(1))
    assert not decision
    assert decision.reply.error is ErrorCode.duplicate_broker_registration
    known = world.image.broker(BrokerId(1))
    assert known is not None
    same = decide_broker_up(world.image, world.registration(1, incarnation=known.incarnation))
    assert not same
    assert same.reply.ok


def test_a_data_folder_of_another_broker_or_cluster_is_refused(world: ClusterWorld) -> None:
    copied = decide_broker_up(world.image, world.registration(4, dirs=["dir-1"]))
    assert copied.reply.error is ErrorCode.invalid_registration
    assert "Broker 1 is already registered with directory dir-1" in (copied.reply.message or "")
    twice = decide_broker_up(world.image, world.registration(4, dirs=["d", "d"]))
    assert twice.reply.error is ErrorCode.invalid_registration
    registration = world.registration(4)
    foreign = type(registration)(
        broker_id=registration.broker_id,
        incarnation=registration.incarnation,
        endpoints=registration.endpoints,
        cluster_id="another-cluster",
    )
    refused = decide_broker_up(world.image, foreign)
    assert not refused
    assert refused.reply.error is ErrorCode.inconsistent_cluster_id
