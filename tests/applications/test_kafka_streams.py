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

from support.application import WAIT_S, Application, kafka_application
from support.committed_reader import CommittedReader, committed_records
from support.eventually import eventually
from support.nilometer_cluster import NilometerCluster

pytestmark = pytest.mark.java

INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
PARTITIONS = 2
WORDS = [f"word{number}" for number in range(40)]
LINES = 150


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


def word_count(cluster: NilometerCluster, folder: Path) -> Application:
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
        },
    )


@pytest.mark.long
def test_word_count_is_exact_while_the_coordinator_and_the_application_are_killed(
    cluster: NilometerCluster, tmp_path: Path
) -> None:
    for topic in (INPUT, OUTPUT):
        cluster.create_topic(topic, PARTITIONS)
    lines = Lines(cluster.bootstrap)
    lines.write(LINES)
    application = word_count(cluster, tmp_path)
    with application, CommittedReader(cluster.bootstrap, OUTPUT, PARTITIONS) as reader:

        def has_counted(share: float) -> bool:
            return len(reader.look()) >= share * lines.words

        application.wait_until(lambda: has_counted(0.1), "the first counts are committed")
        cluster.kill(cluster.wait_leader("__transaction_state", timeout_s=WAIT_S))
        lines.write(LINES)
        application.wait_until(lambda: has_counted(0.9), "it counts with the next coordinator")

        application.kill()
        shutil.rmtree(tmp_path / "state")  # what it knew is in the changelog only
        cluster.start()
        application.start()
        lines.write(LINES)
        application.wait_until(lambda: has_counted(1.0), "all words are counted")
        application.stop()
    counted = counts_of(committed_records(cluster.bootstrap, OUTPUT, PARTITIONS))
    assert counted == {word: list(range(1, count + 1)) for word, count in lines.counts.items()}
    [changelog_topic] = [name for name in cluster.topics() if name.endswith("-changelog")]
    assert cluster.topic_setting(changelog_topic, "cleanup.policy") == "compact"
    restored = counts_of(committed_records(cluster.bootstrap, changelog_topic, PARTITIONS))
    assert {word: counts[-1] for word, counts in restored.items()} == dict(lines.counts)
