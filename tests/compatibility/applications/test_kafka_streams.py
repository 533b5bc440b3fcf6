"""Kafka Streams' own word count with exactly once, while brokers and the application itself are killed.

`WordCountDemo` of `kafka-streams-examples` splits lines into words, repartitions them, counts them in a state
store with a changelog, and writes each new count. With its cache switched off it writes one count for each
word it read: per word, committed, they are exactly 1, 2, 3, …
"""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from support.applications.application import WAIT_S, Application, kafka_application
from support.applications.committed_reader import CommittedReader, committed_records
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually

pytestmark = [pytest.mark.java, pytest.mark.application]

INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
PARTITIONS = 2
WORDS = [f"word{number}" for number in range(40)]
LINES = 400


class Lines:
    """Writes lines of words and knows how often each word was in them."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        )
        self._chance = random.Random(7)
        self.counts: Counter[str] = Counter()

    def write(self, lines: int) -> None:
        for number in range(lines):
            words = self._chance.choices(WORDS, k=6)
            self._producer.produce(INPUT, " ".join(words).encode(), partition=number % PARTITIONS)
            self.counts.update(words)
        eventually(lambda: self._producer.flush(1) == 0, "the lines are acknowledged", WAIT_S)

    @property
    def words(self) -> int:
        return sum(self.counts.values())


def counts_of(records: list[Message]) -> dict[str, list[int]]:
    """Every count that was written of each word, in the order of offsets."""
    counts: dict[str, list[int]] = defaultdict(list)
    for message in records:
        counts[message.key().decode()].append(int.from_bytes(message.value(), "big"))
    return counts


def word_count(cluster: NilometerCluster, folder: Path, protocol: str) -> Application:
    return kafka_application(
        "word-count",
        folder,
        "org.apache.kafka.streams.examples.wordcount.WordCountDemo",
        {
            "bootstrap.servers": cluster.bootstrap,
            "processing.guarantee": "exactly_once_v2",
            "state.dir": str(folder / "state"),
            "replication.factor": "3",
            "session.timeout.ms": "10000",
            "producer.transaction.timeout.ms": "10000",
            "group.protocol": protocol,
        },
    )


class Counting:
    """The application at work: lines go in, and what it has committed is watched."""

    def __init__(self, cluster: NilometerCluster, folder: Path, protocol: str) -> None:
        for topic in (INPUT, OUTPUT):
            cluster.create_topic(topic, PARTITIONS)
        self._cluster = cluster
        self._state = folder / "state"
        self._application = word_count(cluster, folder, protocol)
        self._lines = Lines(cluster.bootstrap)

    def write(self) -> None:
        self._lines.write(LINES)

    def wait_counted(self, share: float) -> None:
        """Until there are counts of so many of the words."""
        self._application.wait_until(
            lambda: len(self._reader.look()) >= share * self._lines.words, f"{share:.0%} are counted"
        )

    def restart(self) -> None:
        """What its state store knew is in the changelog only."""
        self._application.kill()
        shutil.rmtree(self._state)
        self._application.start()

    def assert_exact(self) -> None:
        """Every word of every line is counted once, in the output and in the changelog."""
        bootstrap, expected = self._cluster.bootstrap, self._lines.counts
        self.wait_counted(1.0)
        self._application.stop()
        counted = counts_of(committed_records(bootstrap, OUTPUT, PARTITIONS))
        assert counted == {word: list(range(1, count + 1)) for word, count in expected.items()}
        [changelog] = [name for name in self._cluster.topics() if name.endswith("-changelog")]
        assert self._cluster.topic_setting(changelog, "cleanup.policy") == "compact"
        restored = counts_of(committed_records(bootstrap, changelog, PARTITIONS))
        assert {word: counts[-1] for word, counts in restored.items()} == dict(expected)

    def __enter__(self) -> Counting:
        self._reader = CommittedReader(self._cluster.bootstrap, OUTPUT, PARTITIONS)
        self._application.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self._reader.close()
        self._application.__exit__(kind, *more)


PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "streams"])
"""The group's: its leader assigns the tasks, or the group coordinator (KIP-1071)."""


@PROTOCOLS
@pytest.mark.long
def test_word_count_is_exact_while_the_coordinator_and_the_application_are_killed(
    cluster: NilometerCluster, tmp_path: Path, protocol: str
) -> None:
    with Counting(cluster, tmp_path, protocol) as counting:
        counting.write()
        counting.wait_counted(0.1)
        cluster.kill(cluster.wait_leader("__transaction_state", timeout_s=WAIT_S))
        counting.write()
        counting.wait_counted(0.7)
        cluster.start()
        counting.restart()
        counting.write()
        counting.assert_exact()


@PROTOCOLS
@pytest.mark.soak
def test_word_count_is_exact_through_many_kills(
    cluster: NilometerCluster, tmp_path: Path, protocol: str
) -> None:
    """Each leader in turn that the application depends on, and every so often the application."""
    with Counting(cluster, tmp_path, protocol) as counting:
        counting.write()
        counting.wait_counted(0.1)
        for number, topic in enumerate(4 * ("__transaction_state", INPUT, "__consumer_offsets", OUTPUT)):
            killed = cluster.wait_leader(topic, timeout_s=WAIT_S)
            cluster.kill(killed)
            counting.write()
            counting.wait_counted(0.9)
            if number % 5 == 4:
                counting.restart()
            cluster.start(killed)
            cluster.wait_settled(WAIT_S)
        counting.assert_exact()
