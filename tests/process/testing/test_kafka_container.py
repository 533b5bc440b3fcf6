"""`nilometer.testing.KafkaContainer` behaves as testcontainers' class where tests use it."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.client.admin.admin import Admin, ClusterDescription, ResourceType
from nilometer.runtime import Runtime
from nilometer.testing import ClusterError, KafkaContainer

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
WANTED = {"num.partitions": "5", "log.retention.hours": "7"}


async def describe(server: str) -> tuple[ClusterDescription, dict[str, str | None]]:
    async with Admin(Runtime.system(), {"bootstrap.servers": server}) as admin:
        configs = await admin.describe_configs(ResourceType.BROKER, "1")
        return await admin.describe_cluster(), {name: configs[name].value for name in WANTED}


def test_what_is_set_before_the_start_has_its_effect():
    container = (
        KafkaContainer("confluentinc/cp-kafka:7.6.0", port=19093)
        .with_kraft()
        .with_cluster_id(CLUSTER_ID)
        .with_env("KAFKA_NUM_PARTITIONS", 5)
        .with_envs(KAFKA_LOG_RETENTION_HOURS="7", KAFKA_HEAP_OPTS="-Xmx1G", TZ="UTC")
    )
    with container as kafka:
        assert kafka is container
        server = kafka.get_bootstrap_server()
        assert server == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(19093)}"
        cluster, settings = asyncio.run(describe(server))
        assert cluster.cluster_id == CLUSTER_ID
        assert settings == WANTED
        assert b"Ready: serving clients" in kafka.get_logs()[1]
        with pytest.raises(ClusterError, match="port 9093 is not exposed; the exposed port is 19093"):
            kafka.get_exposed_port(9093)
    with pytest.raises(ClusterError, match="not running"):
        container.get_bootstrap_server()
    container.stop()


def test_a_container_may_be_started_again_and_is_then_empty():
    container = KafkaContainer()
    first = container.start().get_bootstrap_server()
    container.stop()
    with container:
        assert container.get_bootstrap_server() != first


def test_a_setting_that_it_gives_itself_is_refused():
    with pytest.raises(ValueError, match=r"advertised\.listeners cannot be set"):
        KafkaContainer().with_env("KAFKA_ADVERTISED_LISTENERS", "PLAINTEXT://localhost:9093")


def test_a_start_that_takes_too_long_is_an_error():
    with pytest.raises(ClusterError, match=r"not done after 0\.001 s"):
        KafkaContainer().start(timeout=0.001)
