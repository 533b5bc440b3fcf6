"""A cluster of three real brokers with remote storage, and clients of another project that read from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from ..brokers.nilometer_cluster import NilometerCluster
from ..eventually import eventually
from ..logs.segments import segment_files

BROKERS = (1, 2, 3)
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
VALUE = b"v" * 1_000
RECORDS = 4_000


def objects_below(folder: Path) -> list[str]:
    """Return the files in a store's folder, from which brokers remove folders meanwhile."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sorted(str(path.relative_to(folder)) for path in found)


class TieredCluster:
    def __init__(self, folder: Path, uri: str, objects: Callable[[], list[str]]) -> None:
        """``objects`` returns the names of all objects in the store at ``uri``."""
        self.objects = objects
        settings = {
            "remote.log.storage.system.enable": "true",
            "nilometer.tier.uri": uri,
            "nilometer.tier.grace.ms": "0",
            "remote.log.manager.task.interval.ms": "100",
            "log.retention.check.interval.ms": "100",
            "log.segment.delete.delay.ms": "0",
        }
        self.cluster = NilometerCluster(folder / "cluster", len(BROKERS), settings)
        self.cluster.start()
        self.bootstrap = ",".join(broker.bootstrap for broker in self.cluster.brokers.values())
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def close(self) -> None:
        self.cluster.close()

    def create(self, topic: str, **settings: str) -> None:
        configs = TIERED | {key.replace("_", "."): text for key, text in settings.items()}
        self.cluster.create_topic(topic, configs=configs)

    def configure(self, topic: str, **settings: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), text, incremental_operation=AlterConfigOpType.SET)
            for key, text in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def produce(self, topic: str, start: int, count: int = RECORDS, **settings: object) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0, **settings}
        )
        failures = list[object]()
        for number in range(start, start + count):
            producer.produce(
                topic, VALUE, b"%d" % number, 0, on_delivery=lambda error, _: error and failures.append(error)
            )
            producer.poll(0)
        assert producer.flush(60) == 0
        assert failures == []

    def keys(self, topic: str, start: int, end: int, **settings: object) -> list[int]:
        """Return the keys of the records from offset ``start`` on, until one has key ``end - 1``."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
                **settings,
            }
        )
        found = list[int]()
        try:
            consumer.assign([TopicPartition(topic, 0, start)])

            def has_all() -> bool:
                for message in consumer.consume(1_000, 0.1):
                    if message.error() is None:
                        found.append(int(message.key()))
                return bool(found) and found[-1] >= end - 1

            eventually(has_all, f"all records of {topic} up to {end} are read")
        finally:
            consumer.close()
        return found

    def offset(self, topic: str, spec: OffsetSpec) -> int:
        partition = TopicPartition(topic, 0)
        return self.admin.list_offsets({partition: spec})[partition].result(30).offset

    def local_starts(self, topic: str) -> list[int]:
        return [
            int(segment_files(self.cluster.brokers[number].data_dir, topic, 0)[0].stem) for number in BROKERS
        ]

    def wait_tiered(self, topic: str, offset: int) -> None:
        """Wait until no broker has a segment that ends below ``offset``, more or less."""
        eventually(
            lambda: min(self.local_starts(topic)) > offset, f"{topic} is in the tier only, up to {offset}"
        )

    def folders_since(self, before: list[str]) -> set[str]:
        """Return the partitions' folders that have objects now and had none before."""
        return {name.rpartition("/")[0] for name in self.objects()} - {
            name.rpartition("/")[0] for name in before
        }

    def segments_since(self, before: list[str]) -> list[str]:
        new = self.folders_since(before)
        return [name for name in self.objects() if name.endswith(".log") and name.rpartition("/")[0] in new]

    def check_every_record_across_a_change_of_the_leader(self, topic: str) -> None:
        self.create(topic)
        self.produce(topic, 0)
        self.wait_tiered(topic, RECORDS // 2)
        assert self.keys(topic, 0, RECORDS) == list(range(RECORDS))
        leader = self.cluster.leader_of(topic)
        assert leader is not None
        self.cluster.kill(leader)
        self.produce(topic, RECORDS)
        assert self.keys(topic, 0, 2 * RECORDS) == list(range(2 * RECORDS))
        self.cluster.start()
        self.cluster.wait_full_isr(topic)
        self.wait_tiered(topic, 3 * RECORDS // 2)
        assert self.keys(topic, 17, 2 * RECORDS) == list(range(17, 2 * RECORDS))
