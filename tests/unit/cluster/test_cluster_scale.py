"""Ten thousand partitions: what a change costs does not grow with them, and every entry stays small."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster_harness import ClusterWorld

from nilometer.cluster.controller.brokers import (
    decide_broker_up,
    decide_brokers_down,
    decide_controlled_shutdown,
)
from nilometer.cluster.controller.controllership import decide_repair
from nilometer.cluster.controller.isr_changes import IsrChange, IsrMember, decide_alter_partitions
from nilometer.cluster.entries import (
    ENTRY_BYTES_TARGET,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
    entries_of,
)
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerId

TOPICS, PARTITIONS = 10, 1000


def big_world(topics: int = TOPICS) -> ClusterWorld:
    world = ClusterWorld().with_brokers(1, 2, 3, 4, 5)
    for index in range(topics):
        created = world.create(f"topic-{index}", num_partitions=PARTITIONS, replication_factor=3)
        assert created.outcome.ok
    return world


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """How many Python functions ran: a measure of work that no other process can disturb."""
    calls = [0]

    def on_event(_frame: object, event: str, _argument: object) -> None:
        calls[0] += event == "call"

    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def shrink(world: ClusterWorld) -> int:
    """The work of one AlterPartition: decided, encoded, decoded, folded."""
    state = world.state("topic-0", 7)
    request = IsrChange(
        partition=world.key("topic-0", 7),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        new_isr=tuple(IsrMember(r) for r in state.isr[:2]),
    )
    epoch = world.epoch(state.leader)
    with counted_calls() as calls:
        world.enact(decide_alter_partitions(world.image, state.leader, epoch, [request]))
    assert len(world.state("topic-0", 7).isr) == 2
    return calls[0]


def test_n1_one_change_costs_the_same_among_ten_times_as_many_partitions() -> None:
    few, many = shrink(big_world(1)), shrink(big_world(TOPICS))
    assert few == many


@pytest.fixture(scope="module")
def lossy() -> ClusterWorld:
    return big_world()


def test_k3_a_broker_with_ten_thousand_partitions_around_it_goes_and_comes(lossy: ClusterWorld) -> None:
    world = lossy
    assert world.image.partitions_count == TOPICS * PARTITIONS
    hosted = {key for key, _ in world.image.partitions_on(BrokerId(1))}
    assert len(hosted) == TOPICS * PARTITIONS * 3 // 5
    decision = decide_brokers_down(world.image, [BrokerId(1)])
    entries = list(entries_of(decision.units, world.image.controllership))
    assert len(entries) > 1
    touched = set()
    for entry in entries:
        assert len(encode_entry(entry)) <= ENTRY_BYTES_TARGET
        delta = world.append(entry)
        assert not touched.intersection(delta.partitions)
        touched.update(delta.partitions)
    assert touched == hosted
    leaders = [state.leader for _, state in world.image.partitions()]
    assert 1 not in leaders
    for broker in (2, 3, 4, 5):  # what one broker led is spread over all others
        assert leaders.count(broker) == TOPICS * PARTITIONS // 4
    world.enact(decide_broker_up(world.image, world.registration(1)))
    assert not decide_repair(world.image)
    shutdown = decide_controlled_shutdown(world.image, BrokerId(2), world.epoch(2))
    assert shutdown.reply.leaderships == TOPICS * PARTITIONS // 4
    world.enact(shutdown)
    assert all(state.leader != 2 for _, state in world.image.partitions())


def test_k1_a_snapshot_of_ten_thousand_partitions_is_the_fold(lossy: ClusterWorld) -> None:
    data = encode_snapshot(lossy.image.snapshot())
    image = ClusterImage.from_snapshot(decode_snapshot(data))
    assert image == lossy.image
    assert image.partitions_on(BrokerId(3)) == lossy.image.partitions_on(BrokerId(3))
    refolded = lossy.refold()
    assert refolded == lossy.image
    assert all(len(entry) < 900_000 for entry in lossy.log)
    assert decode_entry(lossy.log[0]).controller_epoch == 1
