"""MirrorMaker 2 between Apache Kafka and Nilometer, both ways at once, while a broker of ours is killed.

It mirrors records with their keys, values, headers and partitions, creates the topics with their settings,
and translates the offsets that groups have committed. It delivers at least once: repeats are left out.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from support.applications.application import WAIT_S, kafka_application
from support.applications.committed_reader import CommittedReader
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.kafka.apache_kafka import ApacheKafka

pytestmark = pytest.mark.java

PARTITIONS = 2
RECORDS = 300
READ = 100
RETENTION_MS = "7200000"
GROUP = "readers"
NO_COORDINATOR = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
)


class Side:
    """One of the two clusters: its topic, what was sent there, and its group."""

    def __init__(self, name: str, bootstrap: str, replicas: int) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.topic = f"orders-of-{name}"
        self.mirrored_topic = f"{name}.{self.topic}"
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        topic = NewTopic(self.topic, PARTITIONS, replicas, config={"retention.ms": RETENTION_MS})
        self._admin.create_topics([topic])[self.topic].result(WAIT_S)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self.sent: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(PARTITIONS)}

    def send(self) -> None:
        begun = sum(map(len, self.sent.values()))
        for number in range(begun, begun + RECORDS):
            key, value = b"key %d" % (number % 17), b"%s %d" % (self.name.encode(), number)
            headers = [("number", value)]
            self._producer.produce(self.topic, value, key, partition=number % PARTITIONS, headers=headers)
            self.sent[number % PARTITIONS].append((key, value))
        eventually(lambda: self._producer.flush(1) == 0, "the records are acknowledged", WAIT_S)

    def commit(self, offset: int) -> None:
        """Repeated while the group has no coordinator: the topic that it needs is made for it."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": GROUP, "log_level": 0})
        offsets = [TopicPartition(self.topic, index, offset) for index in range(PARTITIONS)]

        def is_committed() -> bool:
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as refused:
                assert refused.args[0].code() in NO_COORDINATOR, refused
                return False
            return True

        try:
            eventually(is_committed, f"{GROUP} has a coordinator in {self.name}", WAIT_S)
        finally:
            consumer.close()

    def committed(self, topic: str) -> list[int]:
        """The group's offsets here, of the topic's partitions."""
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        asked = [ConsumerGroupTopicPartitions(GROUP, partitions)]
        found = self._admin.list_consumer_group_offsets(asked)[GROUP].result(WAIT_S)
        return [one.offset for one in found.topic_partitions]

    def has_topic(self, topic: str) -> bool:
        found = self._admin.list_topics(timeout=WAIT_S).topics.get(topic)
        return found is not None and len(found.partitions) == PARTITIONS

    def setting(self, topic: str, key: str) -> str | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self._admin.describe_configs([resource])[resource].result(WAIT_S)[key].value


def mirrored(reader: CommittedReader) -> dict[int, list[tuple[bytes, bytes]]]:
    """Each record where it came first, by partition. Values are unique."""
    found: dict[int, dict[tuple[bytes, bytes], None]] = {index: {} for index in range(PARTITIONS)}
    for message in reader.look():
        assert message.headers() == [("number", message.value())]
        found[message.partition()][message.key(), message.value()] = None
    return {index: list(records) for index, records in found.items()}


def assert_nothing_is_skipped(source: Side, offsets: list[int], reader: CommittedReader) -> None:
    """A group that goes on at these offsets on the other side gets every record that it has not read here."""
    last_copy: dict[bytes | None, int] = {}
    for message in reader.look():
        offset = message.offset()
        assert offset is not None
        last_copy[message.value()] = offset
    for partition, offset in enumerate(offsets):
        assert all(last_copy[value] >= offset for _, value in source.sent[partition][READ:])


def settings(kafka: Side, nilometer: Side) -> dict[str, str]:
    return {
        "clusters": "kafka,nilometer",
        "kafka.bootstrap.servers": kafka.bootstrap,
        "nilometer.bootstrap.servers": nilometer.bootstrap,
        "kafka->nilometer.enabled": "true",
        "nilometer->kafka.enabled": "true",
        "topics": "orders-of-.*",
        "groups": GROUP,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.topics.interval.seconds": "5",
        "refresh.groups.interval.seconds": "5",
        "kafka.config.storage.replication.factor": "1",
        "kafka.offset.storage.replication.factor": "1",
        "kafka.status.storage.replication.factor": "1",
        "nilometer.config.storage.replication.factor": "3",
        "nilometer.offset.storage.replication.factor": "3",
        "nilometer.status.storage.replication.factor": "3",
        "kafka->nilometer.replication.factor": "3",
        "nilometer->kafka.replication.factor": "1",
        "kafka->nilometer.checkpoints.topic.replication.factor": "3",
        "nilometer->kafka.checkpoints.topic.replication.factor": "1",
        "kafka->nilometer.heartbeats.topic.replication.factor": "3",
        "nilometer->kafka.heartbeats.topic.replication.factor": "1",
        "kafka->nilometer.offset-syncs.topic.replication.factor": "1",
        "nilometer->kafka.offset-syncs.topic.replication.factor": "3",
        "offset.storage.partitions": "2",
        "status.storage.partitions": "2",
        "plugin.discovery": "service_load",
    }


@pytest.mark.long
def test_both_ways_between_apache_kafka_and_nilometer_while_a_broker_is_killed(
    cluster: NilometerCluster, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka") as apache:
        kafka, nilometer = Side("kafka", apache.bootstrap, 1), Side("nilometer", cluster.bootstrap, 3)
        sides = {kafka: nilometer, nilometer: kafka}
        for source in sides:
            source.send()
            source.commit(READ)
        mirror = kafka_application(
            "mirror",
            tmp_path,
            "org.apache.kafka.connect.mirror.MirrorMaker",
            settings(kafka, nilometer),
        )
        with mirror, ExitStack() as readers:
            opened: dict[Side, CommittedReader] = {}
            for source, target in sides.items():
                topic = source.mirrored_topic
                mirror.wait_until(partial(target.has_topic, topic), f"{topic} is created")
                reader = CommittedReader(target.bootstrap, topic, PARTITIONS)
                opened[source] = readers.enter_context(reader)

            def is_mirrored() -> bool:
                return all(mirrored(opened[source]) == source.sent for source in sides)

            mirror.wait_until(is_mirrored, "both topics are mirrored")
            for source, target in sides.items():
                topic = source.mirrored_topic
                mirror.wait_until(
                    lambda target=target, topic=topic: min(target.committed(topic)) > 0,
                    f"{GROUP}'s offsets are translated",
                )
                assert_nothing_is_skipped(source, target.committed(topic), opened[source])
                assert target.setting(topic, "retention.ms") == RETENTION_MS

            cluster.kill(cluster.wait_leader(kafka.mirrored_topic, timeout_s=WAIT_S))
            for source in sides:
                source.send()
            mirror.wait_until(is_mirrored, "it goes on with the brokers that are left")
