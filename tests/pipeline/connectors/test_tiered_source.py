"""Tiered topics of three brokers read by Spark, with and without the brokers' folders; each record is
compared with what a consumer gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest

from nilometer.pipeline.export.topic_export import export_topics
from nilometer.runtime import Runtime
from nilometer.storage import checkpoints, names
from support.eventually import eventually
from support.tier.tiered_cluster import RECORDS, VALUE, TieredCluster

pytestmark = pytest.mark.spark

TOPIC = "history"


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tier")


@pytest.fixture(scope="module")
def tiered(tier: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    with closing(TieredCluster(folder, tier.as_uri(), list)) as cluster:
        cluster.create(TOPIC)
        produce_transactions(cluster)
        cluster.wait_tiered(TOPIC, RECORDS // 2)
        yield cluster


def produce_transactions(cluster: TieredCluster) -> None:
    """Write transactions, of which every third one is aborted, and end with records outside of them."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": "writer", "log_level": 0}
    )
    producer.init_transactions(30)
    for number in range(40):
        producer.begin_transaction()
        for key in range(100 * number, 100 * number + 100):
            producer.produce(TOPIC, VALUE, b"%d" % key, 0)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    cluster.produce(TOPIC, RECORDS, 100)


def consumed(cluster: TieredCluster, isolation: str) -> list[tuple[int, bytes | None]]:
    """Return (offset, key) of all records, as a consumer gets them."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "readers",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    found = list[tuple[int, bytes | None]]()
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])

        def has_all() -> bool:
            for message in consumer.consume(1_000, 0.1):
                if message.error() is None:
                    found.append((message.offset() or 0, message.key()))
            return bool(found) and found[-1][1] == b"%d" % (RECORDS + 99)

        eventually(has_all, "all records are consumed")
    finally:
        consumer.close()
    return found


def rows(spark, places, **given) -> list[tuple[int, bytes | None]]:
    reader = spark.read.format("nilometer-log").options(subscribe=TOPIC, **given)
    frame = reader.load(places) if places else reader.load()
    return sorted((row.offset, row.key) for row in frame.select("offset", "key").collect())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_spark_reads_what_a_consumer_reads(spark, tiered: TieredCluster, tier: Path, tmp_path, isolation):
    expected = consumed(tiered, isolation)
    assert len(expected) == RECORDS + 100 - (1_300 if isolation == "read_committed" else 0)
    places = [str(broker.data_dir) for broker in tiered.cluster.brokers.values()]
    given = {"tier": tier.as_uri(), "isolation.level": isolation, "bytesPerPartition": "300000"}

    def is_checkpointed() -> bool:
        disk = Runtime.system().disk
        known = [
            dict(checkpoints.read_offsets(disk, f"{place}/{names.REPLICATION_OFFSET_CHECKPOINT}"))
            for place in places
        ]
        return all(one.get(names.TopicPartition(TOPIC, 0), 0) > expected[-1][0] for one in known)

    eventually(is_checkpointed, "the high watermark of all records is checkpointed")
    assert rows(spark, places, **given) == expected
    in_tier = rows(spark, [], **given)
    assert in_tier == expected[: len(in_tier)]
    assert len(in_tier) > len(expected) // 2
    exported = {"paths": json.dumps(places), "subscribe": TOPIC, **given}
    export_topics(spark, exported, tmp_path / "export")
    files = spark.read.parquet(str(tmp_path / "export" / "data" / "*"))
    assert sorted((row.offset, row.key) for row in files.collect()) == expected


def test_a_topic_that_is_deleted_and_created_again_shows_nothing_old(
    spark, tiered: TieredCluster, tier: Path
):
    name = "again"
    for start in (0, 10_000):
        tiered.create(name)
        tiered.produce(name, start)
        tiered.wait_tiered(name, RECORDS // 2)
        frame = spark.read.format("nilometer-log").options(subscribe=name, archive=tier.as_uri()).load()
        keys = sorted(int(row.key) for row in frame.select("key").collect())
        assert len(keys) > RECORDS // 2
        assert keys == list(range(start, start + len(keys)))
        tiered.admin.delete_topics([name])[name].result(30)
        eventually(lambda: len(list(tier.glob("*/*/0/head"))) == 1, "the deleted topic has left its tier")
