"""Two clusters that MirrorMaker 2 mirrors into each other, and MirrorMaker's settings."""

from __future__ import annotations

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from ..eventually import eventually
from .application import WAIT_S

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
