"""Creates topics with known records, through a client of another project."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

KEEP = {"retention.ms": "-1"}
"""No retention: the records of tests have old timestamps, and retention would delete them."""


@dataclass(frozen=True, slots=True)
class Sent:
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Topics:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._numbers = itertools.count()
        self._topic_run = uuid.uuid4().hex[:6]

    def create(
        self,
        partitions: int = 2,
        prefix: str = "events",
        name: str | None = None,
        config: Mapping[str, str] | None = None,
        replicas: int = 1,
    ) -> str:
        name = name or f"{prefix}-{self._topic_run}-{next(self._numbers)}"
        topic = NewTopic(name, partitions, replicas, config={**KEEP, **(config or {})})
        self._admin.create_topics([topic])[name].result(30)
        return name

    def names(self) -> set[str]:
        return set(self._admin.list_topics(timeout=30).topics)

    def add_partitions(self, name: str, count: int) -> None:
        self._admin.create_partitions([NewPartitions(name, count)])[name].result(30)

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def delete_records(self, name: str, partition: int, before: int) -> None:
        for future in self._admin.delete_records([TopicPartition(name, partition, before)]).values():
            future.result(30)

    def end(self, name: str, partition: int) -> int:
        """Return the partition's high watermark."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused"})
        try:
            return consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=30)[1]
        finally:
            consumer.close()

    def send(self, name: str, records: Sequence[Sent], codec: str = "none") -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 5, "compression.type": codec, "acks": "all"}
        )
        failed: list[object] = []
        for one in records:
            producer.produce(
                name,
                one.value,
                key=one.key,
                partition=one.partition,
                timestamp=one.timestamp,
                headers=list(one.headers),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(30) == 0
        assert not failed
