"""A tiered topic whose brokers have lost their disks comes back from its store, in another cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from support.eventually import eventually
from support.kafka.java_driver import JavaDriver, decoded
from support.s3_server import s3_server
from support.tier.tiered_cluster import RECORDS, VALUE, TieredCluster, objects_below

COMMITTED = {"isolation.level": "read_committed"}


@dataclass(frozen=True, slots=True)
class Store:
    uri: str
    objects: Callable[[], list[str]]

    def cluster(self, folder: Path) -> TieredCluster:
        return TieredCluster(folder, self.uri, self.objects)


@pytest.fixture(params=("folder", "bucket"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "bucket":
        with s3_server() as server:
            yield Store(server.url("tier"), lambda: server.keys("tier/"))
    else:
        tier = tmp_path / "tier"
        tier.mkdir()
        yield Store(tier.as_uri(), lambda: objects_below(tier))


def messages(tiered: TieredCluster, topic: str, end: int, **settings: object) -> list[tuple[Any, ...]]:
    """Return all that a consumer sees of each record below ``end``."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": tiered.bootstrap, "group.id": "readers", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True, "log_level": 0,
            "isolation.level": "read_uncommitted", **settings,
        }
    )  # fmt: skip
    found, ended = list[tuple[Any, ...]](), False
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def is_done() -> bool:
            nonlocal ended
            for message in consumer.consume(1_000, 0.1):
                error = message.error()
                ended |= error is not None and error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                if error is None:
                    found.append(
                        (
                            message.offset(),
                            message.timestamp(),
                            message.key(),
                            message.value(),
                            message.headers(),
                        )
                    )
            return ended or bool(found and found[-1][0] >= end - 1)

        eventually(is_done, f"all records of {topic} up to {end} are read")
    finally:
        consumer.close()
    return [one for one in found if one[0] < end]


def write(tiered: TieredCluster, topic: str) -> None:
    """Write records with headers, in transactions of which each third one aborts."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": tiered.bootstrap, "transactional.id": "writer", "log_level": 0}
    )
    producer.init_transactions(30)
    for number in range(RECORDS // 100):
        producer.begin_transaction()
        for key in range(100 * number, 100 * number + 100):
            producer.produce(topic, VALUE, b"%d" % key, 0, headers=[("number", b"%d" % number)])
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def document(*words: str) -> Any:
    command = [sys.executable, "-m", "nilometer.cli", *words, "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def restore(cluster: TieredCluster, store: Store, topic: str, to: str) -> Any:
    """Bring the topic back as a new one, and return what the command says of its partition."""
    cluster.create(to)
    for broker in cluster.cluster.brokers:
        cluster.cluster.stop(broker)
    folders = ",".join(str(one.data_dir) for one in cluster.cluster.brokers.values())
    given = ("--from", store.uri, "--topic", topic, "--as", to, "--log-dirs", folders)
    (part,) = document("tier", "restore", "--allow-recent", *given)["partitions"]
    cluster.cluster.start()
    return part


def test_a_topic_comes_back_in_another_cluster_and_goes_on(store: Store, tmp_path: Path) -> None:
    with closing(store.cluster(tmp_path / "first")) as first:
        first.create("orders")
        write(first, "orders")
        first.wait_tiered("orders", RECORDS // 2)

        def described() -> Any:
            status = document("status", "--bootstrap-server", first.bootstrap)
            (found,) = (one for one in status["tiers"] if one["topic"] == "orders")
            return found

        eventually(lambda: described()["lag_segments"] == 0, "all full segments are copied")
        said = described()
        end = said["end_offset"]
        assert said["missing_records"] > 0 and said["missing_ms"] is not None and said["error"] is None
        everything = messages(first, "orders", end)
        committed = messages(first, "orders", end, **COMMITTED)
        assert 0 < len(committed) < len(everything)
    shutil.rmtree(tmp_path / "first")

    listed = document("tier", "list", "--from", store.uri, "--verify")
    assert listed["problems"] == []
    (stored,) = (one for one in listed["partitions"] if one["topic"] == "orders")
    assert (stored["start_offset"], stored["end_offset"]) == (0, end)

    with closing(store.cluster(tmp_path / "second")) as second:
        part = restore(second, store, "orders", "again")
        assert (part["start"], part["replicas"], part["records"]) == (0, 3, len(everything))
        assert part["end"] == end + part["aborted_transactions"]
        assert messages(second, "again", end) == everything
        if part[
            "aborted_transactions"
        ]:  # of a transaction whose end is not in the store nothing is committed
            committed = [one for one in committed if one[-1] != everything[-1][-1]]
        assert messages(second, "again", end, **COMMITTED) == committed
        second.produce("again", RECORDS)
        second.wait_tiered("again", part["end"] + RECORDS // 2)
        new = second.keys("again", part["end"], 2 * RECORDS)
        assert new == list(range(RECORDS, 2 * RECORDS))
        assert second.keys("again", 0, 2 * RECORDS) == [int(one[2]) for one in committed] + new


@pytest.mark.java
def test_javas_consumer_reads_across_what_came_back_and_what_is_written_since(tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    tier.mkdir()
    store = Store(tier.as_uri(), lambda: objects_below(tier))
    with closing(store.cluster(tmp_path / "first")) as first:
        first.create("orders")
        write(first, "orders")
        first.wait_tiered("orders", RECORDS // 2)
    shutil.rmtree(tmp_path / "first")
    with closing(store.cluster(tmp_path / "second")) as second:
        end = restore(second, store, "orders", "orders")["end"]
        second.produce("orders", RECORDS)
        config = {"bootstrap.servers": second.bootstrap}
        with JavaDriver() as java:
            everything = java.run("consume", config=config, topic="orders")
            committed = java.run("consume", config={**config, **COMMITTED}, topic="orders")
        expected = messages(second, "orders", 1 << 62)
        assert expected[0][0] == 0 and expected[-1][0] > end
        assert [(one["offset"], decoded(one["key"])) for one in everything] == [
            (offset, key) for offset, _, key, *_ in expected
        ]
        visible = {offset for offset, *_ in messages(second, "orders", 1 << 62, **COMMITTED)}
        assert 0 < len(visible) < len(expected)
        assert [one["offset"] for one in committed] == sorted(visible)
