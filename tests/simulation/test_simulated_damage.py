"""Damage in a header at the end of a leader's log, where the batch may pass for one that is being written."""

from __future__ import annotations

import asyncio
import struct

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import BrokerNode, Cluster
from nilometer.simulation.world import World
from nilometer.wire.errors import KafkaError

RECORDS = 5
LENGTH_AT, OVERHEAD_BYTES = 8, 12
PATIENCE_S = 60


def last_batch_at(data: bytes) -> int:
    position = size = 0
    while position + size < len(data):
        position += size
        size = OVERHEAD_BYTES + struct.unpack_from(">i", data, position + LENGTH_AT)[0]
    return position


@pytest.mark.parametrize(
    ("byte", "bit"),
    [(LENGTH_AT + 2, 4), (LENGTH_AT, 7), (6, 3), (7, 6)],
    ids=["longer", "negative", "later", "late"],
)
def test_a_damaged_header_of_the_last_batch_is_repaired_from_another_replica(byte: int, bit: int) -> None:
    values: list[bytes] = []

    async def scenario(world: World) -> None:
        cluster = Cluster(world, brokers=3)
        await cluster.set_up()
        servers = {"bootstrap.servers": cluster.bootstrap_servers}

        async def fill(runtime: Runtime) -> None:
            async with Admin(runtime, servers) as admin:
                await admin.create_topic(NewTopic("t", 1, 3, {"min.insync.replicas": "2"}))
            async with Producer(runtime, servers) as producer:
                for number in range(RECORDS):
                    await producer.send_and_wait("t", b"%d" % number)

        await world.host("clients").start("fill", fill).exited
        while not all(node.is_in_sync() for node in cluster.nodes.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        leader = leader_of(cluster)
        leader.host.disk.flip_bit(path_of(leader), last_batch_at(log_of(leader)) + byte, bit)

        async def read(runtime: Runtime) -> None:
            async with Consumer(runtime, servers) as consumer:
                consumer.assign([TopicPartition("t", 0)])
                consumer.seek_to_beginning()
                while len(values) < RECORDS:
                    try:
                        values.extend(record.value or b"" for record in await consumer.poll(timeout_ms=1_000))
                    except KafkaError:
                        await asyncio.sleep(0.5)

        async with asyncio.timeout(PATIENCE_S):
            await world.host("clients").start("read", read).exited
            while not all(node.is_in_sync() for node in cluster.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert len({log_of(node) for node in cluster.nodes.values()}) == 1

    world = World(3)
    world.run(scenario)
    assert world.failures == []
    assert values == [b"%d" % number for number in range(RECORDS)]


def leader_of(cluster: Cluster) -> BrokerNode:
    assert cluster.newest_image is not None
    ((_, state),) = cluster.newest_image.partitions()
    return cluster.nodes[state.leader]


def path_of(node: BrokerNode) -> str:
    (place,) = node.places_of("t-0")
    return f"{place}/00000000000000000000.log"


def log_of(node: BrokerNode) -> bytes:
    return bytes(node.host.disk.file(path_of(node)).data)
