"""Tiered topics of three real brokers, whose remote storage is a folder: every record is read again, from
wherever it is, by clients of another project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually
from support.logs.segments import segment_files

BROKERS = (1, 2, 3)
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
VALUE = b"v" * 1_000
RECORDS = 4_000


class TieredCluster:
    def __init__(self, folder: Path) -> None:
        self.tier = folder / "tier"
        self.tier.mkdir()
        settings = {
            "remote.log.storage.system.enable": "true",
            "nilometer.tier.uri": self.tier.as_uri(),
            "nilometer.tier.grace.ms": "0",
            "remote.log.manager.task.interval.ms": "100",
            "log.retention.check.interval.ms": "100",
            "log.segment.delete.delay.ms": "0",
        }
        self.cluster = NilometerCluster(folder / "cluster", len(BROKERS), settings)
        self.cluster.start()
        self.bootstrap = ",".join(broker.bootstrap for broker in self.cluster.brokers.values())
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, topic: str, **settings: str) -> None:
        configs = TIERED | {key.replace("_", "."): text for key, text in settings.items()}
        self.cluster.create_topic(topic, configs=configs)

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

    def objects(self) -> list[str]:
        return sorted(str(path.relative_to(self.tier)) for path in self.tier.rglob("*") if path.is_file())

    def folders_since(self, before: list[str]) -> set[str]:
        """Return the partitions' folders that have objects now and had none before."""
        return {name.rpartition("/")[0] for name in self.objects()} - {
            name.rpartition("/")[0] for name in before
        }

    def segments_since(self, before: list[str]) -> list[str]:
        new = self.folders_since(before)
        return [name for name in self.objects() if name.endswith(".log") and name.rpartition("/")[0] in new]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredCluster]:
    made = TieredCluster(tmp_path_factory.mktemp("tiered"))
    with closing(made.cluster):
        yield made


@pytest.mark.quick
def test_every_record_is_read_across_tier_and_log_and_a_change_of_the_leader(tiered: TieredCluster) -> None:
    tiered.create("across")
    tiered.produce("across", 0)
    tiered.wait_tiered("across", RECORDS // 2)
    assert tiered.keys("across", 0, RECORDS) == list(range(RECORDS))
    leader = tiered.cluster.leader_of("across")
    assert leader is not None
    tiered.cluster.kill(leader)
    tiered.produce("across", RECORDS)
    assert tiered.keys("across", 0, 2 * RECORDS) == list(range(2 * RECORDS))
    tiered.cluster.start()
    tiered.cluster.wait_full_isr("across")
    tiered.wait_tiered("across", 3 * RECORDS // 2)
    assert tiered.keys("across", 17, 2 * RECORDS) == list(range(17, 2 * RECORDS))
    assert tiered.offset("across", OffsetSpec.earliest()) == 0


def test_records_behind_the_whole_retention_leave_the_tier(tiered: TieredCluster) -> None:
    tiered.create("short", retention_bytes="2500000")
    tiered.produce("short", 0)
    eventually(lambda: tiered.offset("short", OffsetSpec.earliest()) > RECORDS // 8, "the log begins later")
    start = tiered.offset("short", OffsetSpec.earliest())
    assert tiered.keys("short", start, RECORDS) == list(range(start, RECORDS))


def test_deleted_records_leave_the_tier(tiered: TieredCluster) -> None:
    tiered.create("deleted-records")
    before = tiered.objects()
    tiered.produce("deleted-records", 0)
    tiered.wait_tiered("deleted-records", RECORDS // 2)
    end = TopicPartition("deleted-records", 0, RECORDS // 4 + 7)
    assert tiered.admin.delete_records([end])[end].result(30).low_watermark == end.offset
    assert tiered.offset("deleted-records", OffsetSpec.earliest()) == end.offset
    assert tiered.keys("deleted-records", end.offset, RECORDS) == list(range(end.offset, RECORDS))
    everything = TopicPartition("deleted-records", 0, RECORDS)
    tiered.admin.delete_records([everything])[everything].result(30)
    eventually(lambda: not tiered.segments_since(before), "no segment of it is left")


def test_a_topic_that_is_deleted_leaves_no_object_and_its_name_shows_nothing_old(
    tiered: TieredCluster,
) -> None:
    before = tiered.objects()
    tiered.create("again")
    tiered.produce("again", 0)
    tiered.wait_tiered("again", RECORDS // 2)
    assert len(tiered.objects()) > len(before) + 2
    tiered.admin.delete_topics(["again"])["again"].result(30)
    eventually(lambda: not tiered.folders_since(before), "no object of the deleted topic is left")
    tiered.create("again")
    tiered.produce("again", 100, 10)
    assert tiered.keys("again", 0, 110) == list(range(100, 110))


def test_aborted_transactions_in_the_tier_are_not_read(tiered: TieredCluster) -> None:
    tiered.create("transactions")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tiered.bootstrap, "transactional.id": "writer", "log_level": 0}
    )
    producer.init_transactions(30)
    expected = list[int]()
    for number in range(40):
        producer.begin_transaction()
        keys = range(100 * number, 100 * number + 100)
        for key in keys:
            producer.produce("transactions", VALUE, b"%d" % key, 0)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected += keys
    tiered.wait_tiered("transactions", 2_000)
    assert tiered.keys("transactions", 0, 4_000, **{"isolation.level": "read_committed"}) == expected


def test_without_its_store_a_topic_is_written_and_read_and_keeps_what_is_not_copied(
    tiered: TieredCluster,
) -> None:
    tiered.create("alone")
    tiered.produce("alone", 0, 100)
    hidden = tiered.tier.with_name("hidden")
    tiered.tier.rename(hidden)
    try:
        tiered.produce("alone", 100)
        assert tiered.keys("alone", 0, RECORDS + 100) == list(range(RECORDS + 100))
        assert tiered.local_starts("alone") == [0, 0, 0]
    finally:
        hidden.rename(tiered.tier)
    tiered.wait_tiered("alone", RECORDS // 2)
    assert tiered.keys("alone", 0, RECORDS + 100) == list(range(RECORDS + 100))
