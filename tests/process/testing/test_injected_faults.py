"""Faults that a test injects into the brokers of its cluster: links, disks, clocks, the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import nilometer
from nilometer.kafka import Kafka, RecordMetadata
from nilometer.testing import CLIENTS, Cluster, ClusterError
from nilometer.wire.errors import KafkaError
from support.eventually import eventually

SETTINGS = {
    "replica.lag.time.max.ms": 1_500,
    "replica.fetch.wait.max.ms": 200,
    "zookeeper.session.timeout.ms": 6_000,
}
QUICK = {"delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000, "linger.ms": 0}


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS, faults=True) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """A cluster that is whole again after each test."""
    yield shared
    shared.faults.heal()
    for broker in shared.broker_ids:
        if "offline" in shared.log(broker) or broker not in shared.running:
            shared.restart(broker)


def with_kafka(cluster: Cluster, work: Callable[[Kafka], Awaitable[Any]], **settings: Any) -> Any:
    async def main() -> Any:
        async with nilometer.connect(cluster.bootstrap_servers, settings={**QUICK, **settings}) as kafka:
            return await work(kafka)

    return asyncio.run(main())


def isr(cluster: Cluster, topic: str) -> set[int]:
    async def work(kafka: Kafka) -> set[int]:
        return set((await kafka.admin.topic(topic)).partitions[0].in_sync_replicas)

    return with_kafka(cluster, work)


def send(cluster: Cluster, topic: str, value: str, **settings: Any) -> RecordMetadata:
    return with_kafka(cluster, lambda kafka: kafka.send(topic, value), **settings)


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    async def work(kafka: Kafka) -> list[bytes | None]:
        return [one.value async for one in kafka.consume(topic, until_end=True)]

    return with_kafka(cluster, work)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_follower_that_is_cut_off_from_its_leader_leaves_the_isr_and_returns(
    cluster: Cluster, one_way: bool
):
    topic = f"cut-{one_way}"
    cluster.create_topic(topic)
    leader = cluster.leader(topic)
    # A leader that does not reach the controller cannot change its ISR.
    controller = with_kafka(cluster, lambda kafka: kafka.admin.cluster()).controller_id
    follower = min({1, 2, 3} - {leader, controller})
    faults = cluster.faults

    async def work(kafka: Kafka) -> None:
        await kafka.send(topic, "one")  # now the producer has its id: a broker may need the controller for it
        with faults.cut_one_way(leader, follower) if one_way else faults.cut(leader, follower):
            await kafka.send(topic, "two")
            async with asyncio.timeout(60):  # each broker learns it in its own time
                while follower in (await kafka.admin.topic(topic)).partitions[0].in_sync_replicas:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    with_kafka(cluster, work, **{"delivery.timeout.ms": 60_000, "request.timeout.ms": 30_000})
    eventually(lambda: isr(cluster, topic) == {1, 2, 3}, "the follower has caught up", 60)
    assert values(cluster, topic) == [b"one", b"two"]


def test_clients_that_are_cut_off_get_no_response_until_the_fault_ends(cluster: Cluster):
    cluster.create_topic("clients")
    leader = cluster.leader("clients")
    fault = cluster.faults.cut(leader, CLIENTS)
    with pytest.raises(KafkaError):
        send(cluster, "clients", "lost")
    assert cluster.leader("clients") == leader  # the cluster itself is not cut off
    fault.end()
    fault.end()
    assert send(cluster, "clients", "one").partition == 0
    assert values(cluster, "clients")[-1] == b"one"


def test_requests_that_were_held_arrive_in_order_when_a_link_is_healed(cluster: Cluster):
    cluster.create_topic("held", replication_factor=1)
    leader = cluster.leader("held")

    async def work(kafka: Kafka) -> list[int]:
        await kafka.send("held", "first")
        with cluster.faults.cut(leader, CLIENTS):
            deliveries = [await kafka.enqueue("held", f"{number}" * 100) for number in range(500)]
            await asyncio.sleep(0.3)
            assert not any(one.done() for one in deliveries)
        return [(await one).offset for one in deliveries]

    patient = {"delivery.timeout.ms": 60_000, "request.timeout.ms": 30_000, "batch.size": 1_000}
    assert with_kafka(cluster, work, **patient) == list(range(1, 501))


def test_a_slow_link_delays_what_is_sent_and_keeps_its_order(cluster: Cluster):
    cluster.create_topic("slow", replication_factor=1)
    leader = cluster.leader("slow")

    async def work(kafka: Kafka) -> list[int]:
        await kafka.send("slow", "first")
        with cluster.faults.slow(leader, CLIENTS, 50):
            deliveries = [await kafka.enqueue("slow", str(number)) for number in range(50)]
            await asyncio.gather(*deliveries)
        with cluster.faults.slow(leader, CLIENTS, 600_000):
            deliveries += [await kafka.enqueue("slow", str(number)) for number in range(50)]
            await asyncio.sleep(0.3)
            assert not deliveries[-1].done()
        return [(await one).offset for one in deliveries]

    assert with_kafka(cluster, work, **{"delivery.timeout.ms": 60_000, "request.timeout.ms": 30_000}) == list(
        range(1, 101)
    )


def test_connections_that_are_reset_are_made_again(cluster: Cluster):
    cluster.create_topic("reset")
    leader = cluster.leader("reset")

    async def work(kafka: Kafka) -> int:
        await kafka.send("reset", "one")
        cluster.faults.reset(leader, CLIENTS)
        for other in {1, 2, 3} - {leader}:
            cluster.faults.reset(leader, other)
        return (await kafka.send("reset", "two")).offset

    assert with_kafka(cluster, work, **{"delivery.timeout.ms": 60_000}) == 1
    eventually(lambda: isr(cluster, "reset") == {1, 2, 3}, "all are in sync", 60)


@pytest.mark.parametrize("fault", ["disk_full", "disk_error"])
def test_a_leader_whose_disk_fails_is_replaced(cluster: Cluster, fault: str):
    cluster.create_topic(fault)
    leader = cluster.leader(fault)
    with getattr(cluster.faults, fault)(leader):
        send(cluster, fault, "one", **{"delivery.timeout.ms": 60_000, "request.timeout.ms": 5_000})
        assert cluster.leader(fault) != leader
    cluster.restart(leader)
    eventually(lambda: isr(cluster, fault) == {1, 2, 3}, "the broker has caught up", 60)
    assert set(values(cluster, fault)) == {b"one"}


def test_a_stalled_disk_flushes_when_the_fault_ends(cluster: Cluster):
    cluster.create_topic("stalled", replication_factor=1, configs={"flush.messages": "1"})
    leader = cluster.leader("stalled")

    async def work(kafka: Kafka) -> int:
        with cluster.faults.stall(leader):
            delivery = await kafka.enqueue("stalled", "one")
            await asyncio.sleep(0.5)
            assert not delivery.done()
        await delivery
        with cluster.faults.stall(leader, 50):
            await kafka.send("stalled", "two")
        with cluster.faults.stall(leader, 600_000):
            delivery = await kafka.enqueue("stalled", "three")
            await asyncio.sleep(0.3)
            assert not delivery.done()
        await delivery
        return (await kafka.send("stalled", "four")).offset

    assert with_kafka(cluster, work, **{"delivery.timeout.ms": 60_000, "request.timeout.ms": 30_000}) == 3


def test_a_broker_that_does_not_reach_the_store_loses_its_leaderships(cluster: Cluster):
    cluster.create_topic("store")
    leader = cluster.leader("store")
    with cluster.faults.store(leader):
        eventually(lambda: cluster.leader("store") != leader, "another broker leads", 60)
    eventually(lambda: isr(cluster, "store") == {1, 2, 3}, "the broker is back", 60)


def test_a_clock_that_jumps(cluster: Cluster):
    configs = {"message.timestamp.type": "LogAppendTime"}
    cluster.create_topic("clock", replication_factor=1, configs=configs)
    leader = cluster.leader("clock")
    before = send(cluster, "clock", "now").timestamp
    hour = 3_600_000
    with cluster.faults.clock(leader, hour), cluster.faults.clock(leader, hour):
        assert send(cluster, "clock", "later").timestamp >= before + 2 * hour
    assert send(cluster, "clock", "now again").timestamp < before + hour


def test_a_broker_has_its_faults_after_a_restart_too(cluster: Cluster):
    cluster.create_topic("again", replication_factor=1, configs={"message.timestamp.type": "LogAppendTime"})
    leader = cluster.leader("again")
    before = send(cluster, "again", "now").timestamp
    cluster.kill(leader)
    with cluster.faults.clock(leader, 3_600_000):
        cluster.restart(leader)
        assert (
            send(cluster, "again", "later", **{"delivery.timeout.ms": 60_000}).timestamp >= before + 3_600_000
        )


def test_a_paused_broker_gets_its_faults_when_it_goes_on(cluster: Cluster):
    cluster.create_topic("paused", replication_factor=1, configs={"message.timestamp.type": "LogAppendTime"})
    leader = cluster.leader("paused")
    before = send(cluster, "paused", "now").timestamp
    cluster.pause(leader)
    fault = cluster.faults.clock(leader, 3_600_000)
    cluster.resume(leader)
    cluster.faults.reset(leader, CLIENTS)  # returns when this change, and so the one before, is in force
    patient = {"delivery.timeout.ms": 60_000}
    assert send(cluster, "paused", "later", **patient).timestamp >= before + 3_600_000
    fault.end()


def test_ends_and_delays_that_do_not_exist_are_refused(cluster: Cluster):
    faults = cluster.faults
    for wrong in (
        lambda: faults.cut(4, 1),
        lambda: faults.cut(1, 1),
        lambda: faults.cut(1, 9),
        lambda: faults.slow(1, 2, -1),
        lambda: faults.reset(0, 1),
    ):
        with pytest.raises(
            ValueError, match=r"there is no broker|no other end of a link|must not be negative"
        ):
            wrong()
    with Cluster() as other, pytest.raises(ClusterError, match="make it with faults=True"):
        other.faults.heal()


def test_a_secure_cluster_has_faults_too():
    with Cluster(secure=True, faults=True) as cluster:

        async def work() -> None:
            async with nilometer.connect(
                cluster.bootstrap_servers,
                settings={
                    **{
                        key: one for key, one in cluster.client_settings.items() if key != "bootstrap.servers"
                    },
                    **QUICK,
                },
            ) as kafka:
                await kafka.admin.create_topic("t")
                assert (await kafka.send("t", "one")).offset == 0
                with cluster.faults.cut(1, CLIENTS), pytest.raises(KafkaError):
                    await kafka.send("t", "two")
                assert (await kafka.send("t", "three")).offset >= 1

        asyncio.run(work())
