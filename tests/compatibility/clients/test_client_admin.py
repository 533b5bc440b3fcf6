"""Topics, partitions, settings and folders asked and changed with real admin clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import aiokafka.admin
import confluent_kafka
import kafka.admin
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from support.brokers.serving import Serving
from support.eventually import eventually
from support.kafka.clients import AiokafkaClient, KafkaClient, KcatClient, Written
from support.kafka.java_driver import JavaDriver, JavaError


@pytest.fixture
def config(broker: Serving) -> dict[str, str]:
    return {"bootstrap.servers": broker.bootstrap}


def test_java_topic_create_to_delete(java: JavaDriver, config: dict[str, str], broker: Serving) -> None:
    topic = {"name": "java-topic", "partitions": 3, "configs": {"retention.ms": "1234567"}}
    ids = java.run("create_topics", config=config, topics=[topic])
    with pytest.raises(JavaError) as exists:
        java.run("create_topics", config=config, topics=[topic])
    assert exists.value.code == "TOPIC_ALREADY_EXISTS"
    described = java.run("describe_topics", config=config, topics=["java-topic"])["java-topic"]
    assert described["id"] == ids["java-topic"]
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    for partition in described["partitions"]:
        assert partition["replicas"] == partition["isr"] == [partition["leader"]]
    assert "java-topic" in java.run("list_topics", config=config)
    java.run("create_partitions", config=config, topic="java-topic", count=5)
    described = java.run("describe_topics", config=config, topics=["java-topic"])["java-topic"]
    assert len(described["partitions"]) == 5
    java.run("delete_topics", config=config, topics=["java-topic"])
    eventually(lambda: "java-topic" not in java.run("list_topics", config=config), "the topic is gone")
    with pytest.raises(JavaError) as gone:
        java.run("describe_topics", config=config, topics=["java-topic"])
    assert gone.value.code == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"name": "too-many-replicas", "replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ({"name": "none", "partitions": 0}, "INVALID_PARTITIONS"),
        ({"name": "no good name"}, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "odd", "configs": {"no.such.key": "1"}}, "INVALID_CONFIG"),
        ({"name": "odd", "configs": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
    ],
)
def test_java_is_refused_by_name(
    java: JavaDriver, config: dict[str, str], topic: dict[str, object], code: str
) -> None:
    with pytest.raises(JavaError) as refusal:
        java.run("create_topics", config=config, topics=[topic])
    assert refusal.value.code == code


def test_java_settings(java: JavaDriver, config: dict[str, str], new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1000000")
    settings = java.run("describe_configs", config=config, name=topic)
    assert settings["retention.ms"]["value"] == "1000000"
    assert settings["retention.ms"]["source"] == "DYNAMIC_TOPIC_CONFIG"
    assert settings["segment.bytes"] == {"value": "1073741824", "source": "DEFAULT_CONFIG", "default": True}
    changes = {"set": {"segment.bytes": "2000000"}, "delete": ["retention.ms"]}
    java.run("alter_configs", config=config, name=topic, **changes)
    settings = java.run("describe_configs", config=config, name=topic)
    assert settings["segment.bytes"]["value"] == "2000000"
    assert settings["retention.ms"]["value"] == "604800000"
    with pytest.raises(JavaError) as refusal:
        java.run("alter_configs", config=config, name=topic, set={"segment.bytes": "no number"})
    assert refusal.value.code == "INVALID_CONFIG"


def test_java_cluster_and_log_folders(
    java: JavaDriver,
    config: dict[str, str],
    broker: Serving,
    clients: dict[str, KafkaClient],
    new_topic: Callable[..., str],
) -> None:
    cluster = java.run("describe_cluster", config=config)
    [node] = cluster["nodes"]
    assert cluster["cluster_id"]
    assert (cluster["controller"], f"{node['host']}:{node['port']}") == (node["id"], broker.bootstrap)
    topic = new_topic()
    clients["java"].write(topic, [Written(b"v" * 1000)])
    [folder] = java.run("describe_log_dirs", config=config, brokers=[node["id"]])[str(node["id"])].items()
    assert folder[0] == str(broker.data_dir)
    on_disk = (broker.data_dir / f"{topic}-0" / "00000000000000000000.log").stat().st_size
    assert folder[1][f"{topic}-0"] == on_disk > 1000


def test_confluent_topic_create_to_delete(broker: Serving) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("confluent-topic", 2, 1, config={"cleanup.policy": "compact"})])[
        "confluent-topic"
    ].result(10)
    assert sorted(admin.list_topics("confluent-topic", 10).topics["confluent-topic"].partitions) == [0, 1]
    admin.create_partitions([NewPartitions("confluent-topic", 4)])["confluent-topic"].result(10)
    assert len(admin.list_topics("confluent-topic", 10).topics["confluent-topic"].partitions) == 4
    resource = ConfigResource(ResourceType.TOPIC, "confluent-topic")
    settings = admin.describe_configs([resource])[resource].result(10)
    assert settings["cleanup.policy"].value == "compact"
    change = ConfigEntry("max.message.bytes", "4096", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, "confluent-topic", incremental_configs=[change])
    admin.incremental_alter_configs([changed])[changed].result(10)
    assert admin.describe_configs([resource])[resource].result(10)["max.message.bytes"].value == "4096"
    admin.delete_topics(["confluent-topic"])["confluent-topic"].result(10)
    eventually(lambda: "confluent-topic" not in admin.list_topics(timeout=10).topics, "the topic is gone")
    with pytest.raises(confluent_kafka.KafkaException) as gone:
        admin.delete_topics(["confluent-topic"])["confluent-topic"].result(10)
    assert gone.value.args[0].code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.fixture
def python_admin(broker: Serving) -> Iterator[kafka.admin.KafkaAdminClient]:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield admin
    admin.close()


def test_kafka_python_topic_create_to_delete(
    python_admin: kafka.admin.KafkaAdminClient, broker: Serving
) -> None:
    python_admin.create_topics([kafka.admin.NewTopic("python-topic", 2, 1)])
    assert "python-topic" in python_admin.list_topics()
    [described] = python_admin.describe_topics(["python-topic"])
    assert len(described["partitions"]) == 2
    assert python_admin.describe_cluster()["cluster_id"]
    python_admin.delete_topics(["python-topic"])
    eventually(lambda: "python-topic" not in python_admin.list_topics(), "the topic is gone")


def test_aiokafka_topic_create_to_delete(broker: Serving) -> None:
    async def create_and_delete() -> None:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            await admin.create_topics([aiokafka.admin.NewTopic("aio-topic", 2, 1)])
            assert "aio-topic" in await admin.list_topics()
            [described] = await admin.describe_topics(["aio-topic"])
            assert len(described["partitions"]) == 2
            await admin.delete_topics(["aio-topic"])
        finally:
            await admin.close()

    async def names() -> list[str]:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            return await admin.list_topics()
        finally:
            await admin.close()

    client = AiokafkaClient(broker.bootstrap)
    try:
        client.run(create_and_delete())
        eventually(lambda: "aio-topic" not in client.run(names()), "the topic is gone")
    finally:
        client.close()


def test_kcat_lists_the_cluster(broker: Serving, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    printed = KcatClient(broker.bootstrap).run("-L", "-t", topic).decode()
    assert f'topic "{topic}" with 3 partitions' in printed
