"""K-1: one controller, and an old one that cannot do harm."""

from __future__ import annotations

from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import decide_brokers_down
from nilometer.cluster.controller.controllership import (
    BrokersDown,
    BrokerUp,
    broker_events,
    controllership_entry,
    decide_cluster_defaults,
    decide_repair,
)
from nilometer.cluster.delta import ConfigResource
from nilometer.cluster.entries import decode_entry, encode_entry, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import ConfigResourceType
from nilometer.identifiers import BrokerId, EntryNumber, Incarnation


def test_k1_the_first_controller_founds_the_cluster(world: ClusterWorld) -> None:
    image = world.refold()
    assert image.controller_epoch == 1
    assert image.controller_id == 0
    assert image.cluster_id is not None
    assert len(image.cluster_id) == 22


def test_k1_becoming_controller_raises_the_controller_epoch(world: ClusterWorld) -> None:
    cluster = world.image.cluster_id
    delta = world.become_controller(2)
    assert delta.controller_changed
    assert world.image.controller_id == 2
    assert world.image.controller_epoch == 2
    assert world.image.cluster_id == cluster


def test_k1_entries_of_a_deposed_controller_change_nothing(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    old_controllership = world.image.controllership
    late = decide_brokers_down(world.image, [BrokerId(1), BrokerId(2)])
    world.become_controller(2)
    before = world.image.snapshot()
    for entry in entries_of(late.units, old_controllership):
        delta = world.append(entry)
        assert not delta.accepted
        assert not delta
    after = world.image.snapshot()
    assert after.number == before.number + 1
    assert after.brokers == before.brokers
    assert after.topics == before.topics
    assert after.controller_epoch == before.controller_epoch


def test_k1_two_candidates_of_one_epoch_the_first_number_wins(world: ClusterWorld) -> None:
    first = controllership_entry(world.image, BrokerId(1), Incarnation("a"), world.chance)
    second = controllership_entry(world.image, BrokerId(2), Incarnation("b"), world.chance)
    assert world.append(first).controller_changed
    assert not world.append(second).accepted
    assert world.image.controllership == first.controllership


def test_k1_another_incarnation_of_the_controller_cannot_sign_for_it(world: ClusterWorld) -> None:
    controllership = world.image.controllership._replace(incarnation=Incarnation("another incarnation"))
    down = decide_brokers_down(world.image, [BrokerId(1)])
    assert not world.append(next(entries_of(down.units, controllership))).accepted


def test_k1_a_controllership_entry_signed_by_another_broker_does_not_count(world: ClusterWorld) -> None:
    entry = controllership_entry(world.image, BrokerId(1), Incarnation("a"), world.chance)
    forged = type(entry)(
        controller_id=BrokerId(2),
        controller_incarnation=entry.controller_incarnation,
        controller_epoch=entry.controller_epoch,
        records=entry.records,
    )
    assert not world.append(forged).accepted


def test_k2_a_bounced_broker_is_removed_and_then_added(world: ClusterWorld) -> None:
    world.topic([1, 2, 3])
    epoch_before = world.state().leader_epoch
    sessions = [
        world.registration(1, incarnation="next incarnation"),
        *(world.registration(b, incarnation=world.image.broker(BrokerId(b)).incarnation) for b in (2, 3)),
    ]
    events = broker_events(world.image, sessions)
    assert events == (BrokersDown((BrokerId(1),)), BrokerUp(sessions[0]))
    world.down(1)
    assert world.state().leader == 2
    world.up(1, incarnation="next incarnation")
    assert world.state().isr == (2, 3)
    assert world.state().leader_epoch == epoch_before + 1
    assert broker_events(world.image, sessions) == ()


def test_k2_sessions_are_compared_with_what_is_known(world: ClusterWorld) -> None:
    world.down(3)
    living = [world.registration(2, incarnation="2b"), world.registration(3), world.registration(4)]
    events = broker_events(world.image, living)
    assert events[0] == BrokersDown((BrokerId(1), BrokerId(2)))
    assert [event.registration.broker_id for event in events[1:] if isinstance(event, BrokerUp)] == [2, 3, 4]


def test_k1_a_successor_finishes_what_was_left_half_done() -> None:
    world = ClusterWorld(target=600).with_brokers(1, 2, 3)
    world.create(num_partitions=24, replication_factor=3)
    decision = decide_brokers_down(world.image, [BrokerId(1)])
    assert len(list(entries_of(decision.units, world.image.controllership, 600))) > 4
    world.enact(decision, entries_max=2)
    assert any(state.leader == 1 for _, state in world.image.partitions())
    world.become_controller(2)
    world.enact(decide_repair(world.image))
    for _, state in world.image.partitions():
        assert state.leader in (2, 3)
        assert 1 not in state.isr
    assert not decide_repair(world.image)


def test_k1_an_image_read_from_the_log_is_the_one_that_wrote_it(world: ClusterWorld) -> None:
    world.topic([3, 1])
    world.down(3)
    world.become_controller(1)
    world.up(3)
    image = ClusterImage()
    for number, data in enumerate(world.log):
        assert encode_entry(decode_entry(data)) == data
        image.apply_entry(EntryNumber(number), decode_entry(data))
    assert image == world.image


def test_settings_all_must_agree_on_come_from_the_controller(world: ClusterWorld) -> None:
    world.create("plain")
    world.topic([1, 2, 3], min_isr=3)
    assert world.image.min_insync_replicas("plain") == 1
    world.enact(decide_cluster_defaults(world.image, {"min.insync.replicas": "2"}))
    assert world.image.min_insync_replicas("plain") == 2
    assert world.image.min_insync_replicas("t") == 3
    assert not decide_cluster_defaults(world.image, {"min.insync.replicas": "2"})
    world.enact(decide_cluster_defaults(world.image, {}))
    assert world.image.config(ConfigResourceType.CLUSTER, "") == {}
    assert ConfigResource(ConfigResourceType.CLUSTER, "") not in world.image.config_resources()
