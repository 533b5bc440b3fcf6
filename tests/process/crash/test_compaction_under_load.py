"""A broker compacts a topic while it is written, and is killed in between: the newest values are there.

Each key is written by one producer, over and over. What is acknowledged last for a key is what a reader from
the start finds in the end; a key whose deletion was acknowledged last is gone.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from nilometer.cli.main import run
from nilometer.storage import names
from support.brokers.nilometer_broker import NilometerBroker
from support.eventually import eventually

TOPIC = "newest"
KEYS = 40
KILLS = 4
ROUNDS_BETWEEN = 25
SETTINGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.1",
    "file.delete.delay.ms": "100",
}
BROKER = {
    "log.cleaner.backoff.ms": "50",
    "offsets.topic.num.partitions": "1",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}


class Writer:
    """Writes values to keys and knows which one of each was acknowledged last."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "batch.num.messages": 20,
                "log_level": 0,
            }
        )
        self.newest: dict[bytes, bytes | None] = {}
        self.failed: list[KafkaError] = []
        self._chance = random.Random(1)
        self._number = 0

    def write(self, rounds: int) -> None:
        for _ in range(rounds):
            for key in range(KEYS):
                self._number += 1
                value = b"%d " % self._number * 10 if self._chance.random() < 0.9 else None
                name = b"key %d" % key
                self._producer.produce(TOPIC, key=name, value=value, on_delivery=self._delivered)
            self._producer.poll(0)

    def flush(self) -> None:
        eventually(lambda: self._producer.flush(1) == 0, "everything is acknowledged", 120)
        assert self.failed == []

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        key = message.key()
        assert isinstance(key, bytes)
        value = message.value()
        assert value is None or isinstance(value, bytes)
        self.newest[key] = value

    @property
    def table(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.newest.items() if value is not None}


def read_table(bootstrap: str) -> tuple[dict[bytes, bytes], int]:
    """What a reader from the start ends up with, and how many records it was given."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "table",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    table: dict[bytes, bytes] = {}
    records = 0
    deadline = time.monotonic() + 120
    try:
        while True:
            message = consumer.poll(1.0)
            assert time.monotonic() < deadline, "the topic is read to its end"
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return table, records
                continue
            records += 1
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            if value is None:
                table.pop(key, None)
            else:
                assert isinstance(value, bytes)
                table[key] = value
    finally:
        consumer.close()


def create_topic(bootstrap: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=settings)]).values()
    made.result(60)


def compactions(broker: NilometerBroker) -> int:
    return broker.output.count(f"Compacted {TOPIC}-0 up to offset")


def last_round(broker: NilometerBroker, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The topic's last compaction as `nilometer status` shows it."""
    capsys.readouterr()
    run(["status", "--bootstrap-server", broker.bootstrap, "--timeout", "20", "--json"])
    found = json.loads(capsys.readouterr().out)["compactions"]
    return next(one for one in found if one["topic"] == TOPIC)


def test_a_log_that_is_no_longer_written_is_compacted_after_the_maximum_lag(tmp_path: Path) -> None:
    """Its only segment is the active one, which is never compacted before it is rolled."""
    settings = {"cleanup.policy": "compact", "max.compaction.lag.ms": "300", "file.delete.delay.ms": "100"}
    with NilometerBroker(tmp_path / "data", BROKER) as broker:
        create_topic(broker.bootstrap, settings)
        writer = Writer(broker.bootstrap)
        writer.write(ROUNDS_BETWEEN)
        writer.flush()
        whole = f"Compacted {TOPIC}-0 up to offset {KEYS * ROUNDS_BETWEEN}:"
        eventually(lambda: whole in broker.output, "the active segment is rolled and compacted", 60)
        table, records = read_table(broker.bootstrap)
        assert table == writer.table
        assert records < KEYS * ROUNDS_BETWEEN


@pytest.mark.long
def test_the_newest_values_outlive_compaction_and_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = NilometerBroker(tmp_path / "data", BROKER)
    broker.start()
    try:
        create_topic(broker.bootstrap, SETTINGS)
        writer = Writer(broker.bootstrap)
        for number in range(KILLS):
            writer.write(ROUNDS_BETWEEN)
            writer.flush()
            done = compactions(broker)
            writer.write(ROUNDS_BETWEEN)  # some of it is under way when the broker dies
            if number % 2:
                eventually(lambda done=done: compactions(broker) > done, "a round comes to its end", 60)
            broker.kill()
            broker.start()
            writer.flush()
            assert read_table(broker.bootstrap)[0] == writer.table
        done = compactions(broker)
        writer.write(ROUNDS_BETWEEN)
        writer.flush()
        eventually(lambda: compactions(broker) > done, "what was written last is compacted", 60)
        table, records = read_table(broker.bootstrap)
        assert table == writer.table
        rounds: list[dict[str, Any]] = []

        def is_between_rounds() -> bool:
            rounds.append(last_round(broker, capsys))
            return not rounds[-1]["in_progress"]

        eventually(is_between_rounds, "the last round has ended", 60)
        shown = rounds[-1]
        assert shown["failure"] == ""
        assert shown["end_offset"] > 0
        assert 0 < shown["records_kept"] < shown["records_read"]
        assert broker.stop() == 0
    finally:
        broker.kill()
    written = KEYS * ROUNDS_BETWEEN * (2 * KILLS + 1)
    assert records < written / 2, "old records are gone"
    folder = tmp_path / "data" / f"{TOPIC}-0"
    assert (folder / names.GAPS_MARKER).exists()
    assert "Damage found" not in broker.output
    left = [
        path.name for path in folder.iterdir() if path.suffix in (names.SWAP_SUFFIX, names.CLEANED_SUFFIX)
    ]
    assert left == []
