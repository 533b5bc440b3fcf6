"""Clients that send and read all they can start no election, at the default settings.

    NILOMETER_LOAD_MINUTES=2 pytest tests/process/quorum/test_elections_under_load.py -m soak

Brokers and clients share the processors of one machine, so every voter waits for its turn all the while.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from nilometer.client.admin.admin import NewTopic
from support.brokers.quorum_brokers import QuorumBrokers
from support.brokers.quorum_clients import described

MINUTES = float(os.environ.get("NILOMETER_LOAD_MINUTES", "30"))
DEFAULTS = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "log.retention.bytes": str(1 << 28),
    "log.retention.check.interval.ms": "5000",
    "log.segment.bytes": str(1 << 26),
}
"""Of the sessions; little is kept, so that the disk does not fill."""
PARTITIONS = 6
TIMEOUT_S = 60.0
LARGE, SMALL = bytes(10_000), b"small"
BURST = 200


class Load:
    """What the clients did, and what went wrong: each field has one writer."""

    def __init__(self, cluster: QuorumBrokers) -> None:
        self.cluster = cluster
        self.ends = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.failures: list[str] = []
        self.read = self.committed = self.changes = 0

    def produce(self, topic: str, value: bytes, burst: int) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, "log_level": 2}
        )
        self.acknowledged[topic] = 0

        def done(error: object, _: object) -> None:
            if error is None:
                self.acknowledged[topic] += 1
            else:
                self.failures.append(f"a record of {topic}: {error}")

        while not self.ends.is_set():
            for _ in range(burst):
                try:
                    producer.produce(topic, value, on_delivery=done)
                except BufferError:
                    break
            producer.poll(0.001)
        if producer.flush(TIMEOUT_S):
            self.failures.append(f"some records of {topic} were not acknowledged")

    def consume(self, topic: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": f"readers-of-{topic}",
                "auto.offset.reset": "latest",
                "log_level": 2,
            }
        )
        consumer.subscribe([topic])
        while not self.ends.is_set():
            self.read += len(consumer.consume(BURST, 0.5))
        consumer.close()

    def commit(self, topic: str) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.cluster.bootstrap, "transactional.id": "writer", "log_level": 2}
        )
        producer.init_transactions(TIMEOUT_S)
        while not self.ends.is_set():
            producer.begin_transaction()
            for _ in range(10):
                producer.produce(topic, SMALL)
            producer.commit_transaction(TIMEOUT_S)
            self.committed += 1

    def administer(self) -> None:
        while not self.ends.wait(0.2):
            name = f"changed-{self.changes}"
            self.cluster.operate(lambda admin, name=name: admin.create_topic(NewTopic(name, 3, 3)))
            self.cluster.operate(lambda admin, name=name: admin.delete_topics([name]))
            self.changes += 1


@contextmanager
def running(load: Load, programs: list[Callable[[], None]]) -> Iterator[None]:
    def run(program: Callable[[], None]) -> None:
        try:
            program()
        except Exception as error:  # a thread has no other way to fail the test
            load.failures.append(f"{program}: {error!r}")

    threads = [threading.Thread(target=run, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        load.ends.set()
        for thread in threads:
            thread.join()


@pytest.mark.soak
@pytest.mark.timeout(int(MINUTES * 60) + 300)
def test_no_election_in_half_an_hour_of_full_load(tmp_path: Path) -> None:
    with QuorumBrokers(tmp_path / "cluster", 3, DEFAULTS) as cluster:
        topics = {"large": LARGE, "small": SMALL, "transactions": SMALL}
        for topic in topics:
            cluster.create_topic(topic, PARTITIONS)
        before = described(cluster, 1)
        load = Load(cluster)
        programs = [
            partial(load.produce, "large", LARGE, BURST),
            partial(load.produce, "small", SMALL, 1),
            partial(load.consume, "large"),
            partial(load.consume, "small"),
            partial(load.commit, "transactions"),
            load.administer,
        ]
        with running(load, programs):
            end = time.monotonic() + MINUTES * 60
            while time.monotonic() < end and not load.failures:
                time.sleep(1)
        print(
            f"\n{MINUTES:g} minutes: acknowledged {load.acknowledged}, read {load.read}, transactions"
            f" {load.committed}, topics created and deleted {load.changes}"
        )
        assert load.failures == []
        assert before is not None
        assert described(cluster, 1) == before, "the same leader in the same epoch"
        assert min(*load.acknowledged.values(), load.read, load.committed, load.changes) > 0
        for topic, acknowledged in load.acknowledged.items():
            assert appended(cluster, topic) == acknowledged, topic


def appended(cluster: QuorumBrokers, topic: str) -> int:
    """The records that were ever appended to a topic: the sum of its latest offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "counter"})
    offsets = [
        consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        for partition in range(PARTITIONS)
    ]
    consumer.close()
    return sum(latest for _, latest in offsets)
