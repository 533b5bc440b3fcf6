"""MirrorMaker 2 with exactly once between Apache Kafka and Nilometer, both ways at once.

MirrorMaker and the broker that coordinates its transactions are killed while they mirror. The copies are
then the committed records of their source: each once, in order, and none of an aborted transaction.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from support.applications.application import WAIT_S, Application, kafka_application
from support.applications.committed_reader import CommittedReader, committed_records
from support.applications.mirrored_clusters import PARTITIONS, Side, settings
from support.brokers.nilometer_cluster import NilometerCluster
from support.kafka.apache_kafka import ApacheKafka
from support.ports import HOST, free_ports

pytestmark = [pytest.mark.java, pytest.mark.application]

TRANSACTIONS = 20
RECORDS = 30
"""Of a committed transaction."""
POLL = 20
"""MirrorMaker copies so many records in a transaction, so that a kill comes between two of them."""


class TransactionalSide(Side):
    """A cluster whose records are sent in transactions. Every second one is aborted."""

    def __init__(self, name: str, bootstrap: str, replicas: int) -> None:
        super().__init__(name, bootstrap, replicas)
        self._writer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"writer-of-{name}", "log_level": 0}
        )
        self._writer.init_transactions(WAIT_S)

    def send(self) -> None:
        for _ in range(TRANSACTIONS):
            self._transaction(committed=False)
            self._transaction(committed=True)

    def _transaction(self, *, committed: bool) -> None:
        begun = sum(map(len, self.sent.values()))
        self._writer.begin_transaction()
        for number in range(begun, begun + RECORDS):
            kind = "record" if committed else "aborted"
            key, value = b"key %d" % (number % 17), f"{kind} {number} of {self.name}".encode()
            self._writer.produce(self.topic, value, key, partition=number % PARTITIONS)
            if committed:
                self.sent[number % PARTITIONS].append((key, value))
        if committed:
            self._writer.commit_transaction(WAIT_S)
        else:
            self._writer.flush(WAIT_S)
            self._writer.abort_transaction(WAIT_S)

    @property
    def records(self) -> int:
        return sum(map(len, self.sent.values()))


def copies(reader: CommittedReader) -> dict[int, list[tuple[bytes, bytes]]]:
    """Every copy, by partition, in order."""
    found: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(PARTITIONS)}
    for message in reader.look():
        found[message.partition()].append((message.key(), message.value()))
    return found


class Mirroring:
    """MirrorMaker at work between two sides, and readers of the copies."""

    def __init__(self, mirror: Application, kafka: TransactionalSide, nilometer: TransactionalSide) -> None:
        self._mirror = mirror
        self._targets = {kafka: nilometer, nilometer: kafka}
        self._readers: dict[TransactionalSide, CommittedReader] = {}

    def open(self, readers: ExitStack) -> None:
        for source, target in self._targets.items():
            topic = source.mirrored_topic
            self._mirror.wait_until(partial(target.has_topic, topic), f"{topic} is created")
            reader = CommittedReader(target.bootstrap, topic, PARTITIONS)
            self._readers[source] = readers.enter_context(reader)

    def send_and_wait_for_some(self) -> None:
        """Send records on both sides, and wait until a part of them is copied to each other side."""
        before = {source: source.records for source in self._targets}
        for source in self._targets:
            source.send()

        def has_some() -> bool:
            return all(len(self._readers[source].look()) > known for source, known in before.items())

        self._mirror.wait_until(has_some, "the first records of this round are copied")

    def wait_copied(self) -> None:
        self._mirror.wait_until(
            lambda: all(len(self._readers[source].look()) >= source.records for source in self._targets),
            "as many records are committed as were sent",
        )
        self.assert_exact()

    def assert_exact(self) -> None:
        for source in self._targets:
            found = copies(self._readers[source])
            for partition, sent in source.sent.items():
                assert found[partition] == sent, f"partition {partition} of the copy of {source.topic}"

    def assert_copies_were_transactional(self) -> None:
        """Between the records are markers, which have offsets but are not read."""
        for source, reader in self._readers.items():
            ends = {message.partition(): message.offset() or 0 for message in reader.look()}
            for partition, sent in source.sent.items():
                assert ends[partition] >= len(sent), f"the copy of {source.topic}-{partition}"


def exactly_once(kafka: Side, nilometer: Side) -> dict[str, str]:
    return {
        **settings(kafka, nilometer),
        "dedicated.mode.enable.internal.rest": "true",
        "scheduled.rebalance.max.delay.ms": "0",
        "listeners": f"http://{HOST}:{free_ports(1)[0]}",
        **{f"{target}.exactly.once.source.support": "enabled" for target in ("kafka", "nilometer")},
        **{f"{source}.consumer.isolation.level": "read_committed" for source in ("kafka", "nilometer")},
        **{f"{source}.consumer.max.poll.records": str(POLL) for source in ("kafka", "nilometer")},
    }


@pytest.mark.long
def test_both_ways_with_exactly_once_while_mirror_maker_and_a_coordinator_are_killed(
    cluster: NilometerCluster, tmp_path: Path
) -> None:
    with ApacheKafka(tmp_path / "kafka") as apache:
        kafka = TransactionalSide("kafka", apache.bootstrap, 1)
        nilometer = TransactionalSide("nilometer", cluster.bootstrap, 3)
        mirror = kafka_application(
            "mirror",
            tmp_path,
            "org.apache.kafka.connect.mirror.MirrorMaker",
            exactly_once(kafka, nilometer),
        )
        with mirror, ExitStack() as readers:
            mirroring = Mirroring(mirror, kafka, nilometer)
            mirroring.open(readers)

            mirroring.send_and_wait_for_some()
            mirror.kill()
            mirror.start()
            mirroring.wait_copied()

            mirroring.send_and_wait_for_some()
            cluster.kill(cluster.wait_leader("__transaction_state", timeout_s=WAIT_S))
            mirroring.wait_copied()
            mirroring.assert_copies_were_transactional()
        for source, target in ((kafka, nilometer), (nilometer, kafka)):
            copied = committed_records(target.bootstrap, source.mirrored_topic, PARTITIONS)
            assert len(copied) == source.records, "nothing was added when MirrorMaker ended"
