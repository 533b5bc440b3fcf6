"""An entry that breaks the image changes nothing of it, not even in part."""

from __future__ import annotations

import pytest
from cluster_harness import ClusterWorld
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cluster.entries import BadEntry, Entry, EntryFromTheFuture, decode_entry
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    BrokerFenced,
    BrokerUnregistered,
    ConfigChanged,
    ConfigResourceType,
    PartitionChanged,
    PartitionCreated,
    ProducerIdsAllocated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from nilometer.identifiers import BrokerEpoch, BrokerId, EntryNumber, LeaderEpoch, PartitionEpoch, TopicId
from nilometer.invariants import InvariantBroken
from support.properties import examples

OTHER_ID = TopicId("abcdefghijklmnopqrstug")


def world_with_topic() -> ClusterWorld:
    world = ClusterWorld().with_brokers(1, 2, 3)
    world.create(name="t", num_partitions=2, replication_factor=3, configs={"retention.ms": "5"})
    return world


def good_records(image: ClusterImage) -> list[Record]:
    """One of each kind that changes something, in an order in which they can be folded."""
    topic = image.topic("t")
    assert topic is not None
    broker_epoch = image.broker_epoch(BrokerId(3))
    assert broker_epoch is not None
    leaves = PartitionChanged(
        topic_id=topic.id, partition=0, isr=(BrokerId(1), BrokerId(2)), partition_epoch=PartitionEpoch(1)
    )
    state = topic.partitions[0]
    if state.leader == 3:
        leaves = PartitionChanged(
            topic_id=topic.id,
            partition=0,
            leader=BrokerId(1),
            leader_epoch=LeaderEpoch(1),
            partition_epoch=PartitionEpoch(1),
        )
    return [
        TopicCreated(name="u", topic_id=OTHER_ID),
        ConfigChanged(resource_type=ConfigResourceType.TOPIC, resource_name="u", key="a", value="1"),
        ConfigChanged(
            resource_type=ConfigResourceType.TOPIC, resource_name="t", key="retention.ms", value=None
        ),
        ConfigChanged(resource_type=ConfigResourceType.BROKER, resource_name="", key="b", value="2"),
        PartitionCreated(topic_id=OTHER_ID, partition=0, replicas=(BrokerId(1), BrokerId(2))),
        PartitionCreated(topic_id=topic.id, partition=2, replicas=(BrokerId(2),)),
        leaves,
        BrokerFenced(broker_id=BrokerId(3), broker_epoch=broker_epoch),
        BrokerUnregistered(broker_id=BrokerId(3), broker_epoch=broker_epoch),
        ProducerIdsAllocated(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1), next_producer_id=1000),
        TopicDeleted(topic_id=topic.id),
    ]


BREAKING: list[Record] = [
    TopicDeleted(topic_id=TopicId("0000000000000000000000")),
    TopicCreated(name="v", topic_id=TopicId("no id")),
    PartitionCreated(topic_id=OTHER_ID, partition=7, replicas=(BrokerId(1),)),
    PartitionCreated(topic_id=OTHER_ID, partition=0, replicas=()),
    BrokerFenced(broker_id=BrokerId(9), broker_epoch=BrokerEpoch(1)),
    PartitionChanged(topic_id=OTHER_ID, partition=5, partition_epoch=PartitionEpoch(1)),
]


def entry_of(image: ClusterImage, records: list[Record]) -> Entry:
    return Entry(
        controller_id=image.controllership.controller_id,
        controller_incarnation=image.controllership.incarnation,
        controller_epoch=image.controllership.controller_epoch,
        records=tuple(records),
    )


@examples(80)
@given(kept=st.integers(0, 11), breaking=st.sampled_from(BREAKING), drop=st.sets(st.integers(0, 10)))
def test_an_entry_that_breaks_an_invariant_changes_nothing(
    kept: int, breaking: Record, drop: set[int]
) -> None:
    world = world_with_topic()
    image, before, index = world.image, world.image.snapshot(), _lookups(world.image)
    records = [record for at, record in enumerate(good_records(image)[:kept]) if at not in drop]
    entry = entry_of(image, [*records, breaking])
    number = EntryNumber(image.number + 1)
    for attempt in (image.check_entry, image.apply_entry, image.apply_entry):
        with pytest.raises(InvariantBroken):
            attempt(number, entry)
        assert image.snapshot() == before
        assert _lookups(image) == index
    assert world.create(name="w", num_partitions=1).outcome.ok, "it goes on from where it stood"
    assert world.refold() == image


def test_checking_a_good_entry_changes_nothing_either() -> None:
    world = world_with_topic()
    image, before, index = world.image, world.image.snapshot(), _lookups(world.image)
    number, entry = EntryNumber(image.number + 1), entry_of(image, good_records(image))
    image.check_entry(number, entry)
    assert image.snapshot() == before
    assert _lookups(image) == index
    image.apply_entry(number, entry)
    assert [topic.name for topic in image.topics()] == ["u"]
    other = ClusterImage.from_snapshot(before)
    other.apply_entry(number, entry)
    assert other == image


def test_a_reassignment_that_names_a_broker_twice_breaks_an_invariant() -> None:
    world = world_with_topic()
    topic = world.image.topic("t")
    assert topic is not None
    twice = PartitionChanged(
        topic_id=topic.id,
        partition=0,
        replicas=(BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(3)),
        partition_epoch=PartitionEpoch(1),
    )
    with pytest.raises(InvariantBroken, match="twice"):
        world.image.apply_entry(EntryNumber(world.image.number + 1), entry_of(world.image, [twice]))


def test_what_cannot_be_read_is_no_entry() -> None:
    newer = b'{"version":99,"records":[{"type":"Later"}]}'
    with pytest.raises(EntryFromTheFuture, match="upgrade"):
        decode_entry(newer)
    signed = b'{"version":1,"controller_id":1,"controller_incarnation":"a","controller_epoch":1,"records":'
    for records in (
        b'[{"type":"UnknownRecord"}]}',
        b"[",
        b"[" * 100_000,
        b'[{"type":"topic_created"}]}',
        b"\xff",
    ):
        with pytest.raises(BadEntry):
            decode_entry(signed + records)


def _lookups(image: ClusterImage) -> object:
    """What is derived from the image and kept beside it."""
    return (
        [sorted(image.partitions_on(BrokerId(broker))) for broker in (1, 2, 3)],
        image.leaderless_partitions(),
        image.reassigning_partitions(),
        image.partitions_count,
        [image.colliding_topic(name) for name in ("t", "u", "v")],
        [image.topic_by_id(OTHER_ID), dict(image.config(ConfigResourceType.TOPIC, "t"))],
    )
