"""A broker that comes back acts on what the metadata log says now, not on all that it ever said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nilometer.client.admin.admin import Admin, NewTopic
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.coordination.zookeeper.ensemble import Disconnected
from nilometer.coordination.zookeeper.registration import Registration
from nilometer.runtime import Runtime
from nilometer.simulation.checkers import logs
from nilometer.simulation.checkers.history import History
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.stores import EnsemblePlan
from nilometer.simulation.workload.consumers import Reader
from nilometer.simulation.world import Host, World
from nilometer.simulation.zookeeper.server import Settings


async def _create(cluster: Cluster, host: Host, name: str, replicas: int) -> None:
    async def main(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            await admin.create_topic(NewTopic(name, 1, replicas))

    assert await host.start("create", main).exited is None


async def _delete(cluster: Cluster, host: Host, name: str) -> None:
    async def main(runtime: Runtime) -> None:
        async with Admin(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as admin:
            assert await admin.delete_topics([name]) == {name: None}

    assert await host.start("delete", main).exited is None


async def _produce(cluster: Cluster, host: Host, name: str, values: list[bytes]) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(runtime, {"bootstrap.servers": cluster.bootstrap_servers}) as producer:
            for value in values:
                await producer.send_and_wait(name, value, partition=0)

    assert await host.start("produce", main).exited is None


async def _read(cluster: Cluster, host: Host, name: str) -> list[str]:
    history = History()
    reader = Reader("reader", host, cluster.bootstrap_servers, [TopicPartition(name, 0)], history)
    assert await host.start("reader", reader.read_to_end).exited is None
    return [seen.value for poll in history.polls for seen in poll.records]


def test_a_topic_created_again_under_its_name_outlives_restarts() -> None:
    async def scenario(world: World) -> None:
        cluster, clients = Cluster(world, brokers=1, one_machine=True), world.host("clients")
        await cluster.set_up()
        await _create(cluster, clients, "again", 1)
        await _produce(cluster, clients, "again", [b"old"])
        await _delete(cluster, clients, "again")
        await _create(cluster, clients, "again", 1)
        await _produce(cluster, clients, "again", [b"new", b"newer"])
        for _ in range(2):
            cluster.nodes[1].crash()
            cluster.nodes[1].start()
            await cluster.until_serving([1])
            assert await _read(cluster, clients, "again") == ["new", "newer"]

    world = World(1)
    world.run(scenario)
    assert world.failures == []


def test_a_damaged_checkpoint_file_is_named_and_no_record_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    path = "/data/1/replication-offset-checkpoint"

    async def scenario(world: World) -> None:
        cluster, clients = Cluster(world, brokers=1, one_machine=True), world.host("clients")
        await cluster.set_up()
        await _create(cluster, clients, "t", 1)
        await _produce(cluster, clients, "t", [b"kept"])
        node = cluster.nodes[1]
        node.stop()
        while node.is_running:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        node.host.disk.file(path).truncate(3)
        node.start()
        await cluster.until_serving([1])
        assert await _read(cluster, clients, "t") == ["kept"]

    world = World(4)
    world.run(scenario)
    assert world.failures == []
    expected = f"Damaged checkpoint file is treated as empty: {path}: "
    assert sum(record.getMessage().startswith(expected) for record in caplog.records) == 1


def test_former_leaders_do_not_lead_again_while_the_log_is_read() -> None:
    """Each epoch chain says of each batch what the batch says of itself, after every broker has led."""

    async def scenario(world: World) -> None:
        cluster, clients = Cluster(world), world.host("clients")
        await cluster.set_up()
        await _create(cluster, clients, "t", 3)
        for turn in range(2):
            for node in cluster.nodes.values():
                await _produce(cluster, clients, "t", [b"%d-%d-%d" % (turn, node.id, n) for n in range(3)])
                node.crash()
                await asyncio.sleep(2)
                await _produce(cluster, clients, "t", [b"%d-%d+%d" % (turn, node.id, n) for n in range(3)])
                node.start()
                await cluster.until_serving([node.id])
                while not all(each.is_in_sync() for each in cluster.nodes.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)
        await asyncio.sleep(5)
        replicas = [
            logs.read_replica(node.host.disk, node.places_of("t-0")[0], node.id)
            for node in cluster.nodes.values()
        ]
        there = [replica for replica in replicas if replica is not None]
        assert len(there) == 3
        assert len({batch.epoch for batch in there[0].batches}) > 3, "leadership moved"
        assert logs.compare("t-0", there) == []

    world = World(2)
    world.run(scenario)
    assert world.failures == []


def test_a_disk_that_fills_up_while_a_broker_takes_up_its_partitions_costs_nothing() -> None:
    """At whatever step the disk is full: what could not be taken up is neither given up nor removed."""

    async def scenario(world: World) -> None:
        cluster, clients = Cluster(world, brokers=1, one_machine=True), world.host("clients")
        node, names = cluster.nodes[1], [f"t{number}" for number in range(4)]
        await cluster.set_up()
        for name in names:
            await _create(cluster, clients, name, 1)
            await _produce(cluster, clients, name, [b"kept"])
        disk, served = node.host.disk, 0
        for room in range(0, 8_000, 250):
            node.crash()
            disk.capacity = disk.used + room
            node.start()
            await asyncio.sleep(0.2)
            served += node.is_serving
            node.crash()
        assert 0 < served < 32, "the room ended at one place and another"
        disk.capacity = 1 << 40
        node.start()
        await cluster.until_serving([1])
        for name in names:
            assert await _read(cluster, clients, name) == ["kept"]

    world = World(3)
    world.run(scenario)


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done"])
def test_a_start_goes_on_when_it_is_unknown_whether_the_broker_is_registered(
    monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    create_node, attempts = Registration._create_node, list[int]()

    async def lose_the_first_answer(self: Registration, broker_id: int, *args: Any) -> None:
        attempts.append(broker_id)
        if is_done or len(attempts) > 1:
            await create_node(self, broker_id, *args)
        if len(attempts) == 1:
            raise Disconnected("the connection was lost")

    monkeypatch.setattr(Registration, "_create_node", lose_the_first_answer)

    async def scenario(world: World) -> None:
        ensemble = EnsemblePlan(settings=Settings(), chroot="", session_timeout_ms=3_000)
        cluster = Cluster(world, brokers=1, ensemble=ensemble)
        await cluster.set_up()
        assert cluster.nodes[1].unexpected_exits == []

    world = World(1)
    world.run(scenario)
    assert world.failures == []
    assert attempts[:2] == [1, 1]
