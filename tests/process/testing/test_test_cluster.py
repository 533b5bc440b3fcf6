"""`nilometer.testing.Cluster`: brokers start, fail and restart at their addresses."""

from __future__ import annotations

import asyncio
import socket

import pytest

from nilometer.client.admin.admin import Admin, ResourceType
from nilometer.client.consumer.consumer import Consumer
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.producer import Producer
from nilometer.runtime import Runtime
from nilometer.testing import Cluster, ClusterError
from nilometer.wire.errors import ErrorCode, KafkaError

CLUSTER_ID = "AAAAAAAAQACAAAAAAAAAAQ"


async def send(servers: str, topic: str, values: list[bytes]) -> None:
    async with Producer(Runtime.system(), {"bootstrap.servers": servers}) as producer:
        for delivery in [await producer.send(topic, value) for value in values]:
            await delivery


async def read(servers: str, topic: str, count: int) -> list[bytes | None]:
    async with Consumer(Runtime.system(), {"bootstrap.servers": servers}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == count:
                return found
    raise AssertionError("not reached")


async def broker_settings(servers: str) -> dict[str, str | None]:
    async with Admin(Runtime.system(), {"bootstrap.servers": servers}) as admin:
        found = await admin.describe_configs(ResourceType.BROKER, "1")
        return {name: entry.value for name, entry in found.items()}


@pytest.mark.quick
def test_a_killed_leader_is_replaced_and_comes_back_at_its_address():
    with Cluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        assert len(set(servers.split(","))) == 3
        cluster.create_topic("orders")
        asyncio.run(send(servers, "orders", [b"one"]))
        first = cluster.leader("orders")
        cluster.kill(first)
        assert cluster.running == [broker for broker in (1, 2, 3) if broker != first]
        assert cluster.leader("orders") != first
        asyncio.run(send(servers, "orders", [b"two"]))
        cluster.restart(first)
        assert cluster.running == [1, 2, 3]
        assert cluster.bootstrap_servers == servers
        assert asyncio.run(read(cluster.address(first), "orders", 2)) == [b"one", b"two"]
        assert "Ready: serving clients" in cluster.log(first)


def test_no_other_process_gets_the_port_of_a_broker_that_is_down():
    with Cluster() as cluster:
        host, _, port = cluster.address(1).rpartition(":")
        cluster.kill(1)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        cluster.restart(1)


def test_a_paused_broker_is_replaced_and_may_be_restarted():
    with Cluster(brokers=3, settings={"zookeeper.session.timeout.ms": 6_000}) as cluster:
        cluster.create_topic("orders")
        leader = cluster.leader("orders")
        cluster.pause(leader)
        assert leader not in cluster.running
        assert cluster.leader("orders") != leader
        cluster.resume(leader)
        assert cluster.running == [1, 2, 3]
        cluster.pause(leader)
        cluster.restart(leader)
        assert cluster.running == [1, 2, 3]


def test_groups_and_transactions_of_tests_start_at_once():
    with Cluster(settings={"auto.create.topics.enable": False, "num.partitions": 4}) as cluster:
        settings = asyncio.run(broker_settings(cluster.bootstrap_servers))
    assert settings["group.initial.rebalance.delay.ms"] == "0"
    assert settings["offsets.topic.num.partitions"] == "1"
    assert settings["transaction.state.log.num.partitions"] == "1"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["num.partitions"] == "4"


def test_the_same_in_an_event_loop():
    async def work() -> list[bytes | None]:
        async with Cluster(brokers=3) as cluster:
            await cluster.create_topic("orders", configs={"retention.ms": "1000000"})
            await send(cluster.bootstrap_servers, "orders", [b"one"])
            leader = await cluster.leader("orders")
            await cluster.kill(leader)
            assert leader not in await cluster.running()
            assert await cluster.leader("orders") != leader
            await cluster.restart(leader)
            await cluster.stop(leader)
            return await read(cluster.bootstrap_servers, "orders", 1)

    assert asyncio.run(work()) == [b"one"]


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="between 1 and 16, not 0"):
        Cluster(brokers=0)
    with pytest.raises(ValueError, match=r"log\.dirs cannot be set"):
        Cluster(settings={"log.dirs": "/tmp/x"})
    with pytest.raises(ClusterError, match="the cluster is not running"):
        _ = Cluster().bootstrap_servers
    with pytest.raises(ClusterError, match=r"broker 1 did not start: .*no\.such\.key"):
        Cluster(settings={"no.such.key": "1"}).start()
    with Cluster() as cluster:
        with pytest.raises(ClusterError, match="started already"):
            cluster.start()
        with pytest.raises(ValueError, match="there is no broker 2"):
            cluster.kill(2)
        cluster.create_topic("orders")
        with pytest.raises(KafkaError) as twice:
            cluster.create_topic("orders")
        assert twice.value.code == ErrorCode.topic_already_exists
        cluster.kill(1)
        with pytest.raises(ClusterError, match="broker 1 does not run"):
            cluster.pause(1)
        with pytest.raises(ClusterError, match="no broker runs"):
            cluster.leader("orders")


@pytest.mark.quick
def test_a_secure_cluster():
    """TLS, SCRAM and ACLs: clients connect by `client_settings`, and by nothing else."""

    async def users(settings: dict[str, str]) -> None:
        async with Producer(Runtime.system(), settings) as producer:
            await (await producer.send("orders", b"one"))
        async with Consumer(Runtime.system(), settings) as consumer:
            consumer.assign([TopicPartition("orders", 0)])
            consumer.seek_to_beginning()
            async for record in consumer:
                assert record.value == b"one"
                return

    with Cluster(brokers=2, secure=True, cluster_id=CLUSTER_ID) as cluster:
        cluster.create_topic("orders", replication_factor=2)
        leader = cluster.leader("orders")
        assert cluster.client_settings["security.protocol"] == "SASL_SSL"
        asyncio.run(users(cluster.client_settings))
        cluster.kill(leader)
        assert cluster.leader("orders") != leader
        cluster.restart(leader)
        wrong = {**cluster.client_settings, "sasl.mechanism": "SCRAM-SHA-256"}
        with pytest.raises(KafkaError, match=r"SASL|mechanism|[Aa]uthentication"):
            asyncio.run(users(wrong))
    with Cluster(brokers=1) as cluster:
        assert cluster.client_settings == {"bootstrap.servers": cluster.bootstrap_servers}
