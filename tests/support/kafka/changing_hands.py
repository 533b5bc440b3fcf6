"""Fills a broker's compacted, transactional and internal topics, and says what clients then find in them.

The broker is Apache Kafka or Nilometer, whichever serves the address; the other one is to open its folders.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..applications.committed_reader import committed_records
from ..eventually import eventually
from ..wire.wire_peer import WirePeer

TABLE, OFFSETS, TRANSACTIONS = TOPICS = ("table", "__consumer_offsets", "__transaction_state")
"""Each has one partition."""
GROUPS = tuple(f"group-{number}" for number in range(5))
PRODUCERS = tuple(f"producer-{number}" for number in range(3))
CHECKPOINT = "cleaner-offset-checkpoint"
KEYS = 10
ROUNDS = 18
WAIT_S = 120.0
COMPACTING = {
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "1000",
    "segment.bytes": "1048576",
}
BROKER_SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
    "log.cleaner.backoff.ms": "200",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What clients find: these are to be equal before and after the folders changed hands."""

    table: dict[bytes, bytes]
    """Of each key, the committed value."""
    offsets: dict[str, int]
    """The committed offset of each group."""
    transactions: dict[str, tuple[str, int, int]]
    """State, producer id and epoch of each transactional id."""


def create_topics(bootstrap: str) -> None:
    """Create all three topics; the internal ones by using them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(TABLE, 1, 1, config={"cleanup.policy": "compact", **COMPACTING})
    admin.create_topics([topic])[TABLE].result(WAIT_S)
    producer(bootstrap, PRODUCERS[0])
    commit(bootstrap, GROUPS[0], 0)


def compact_internal_topics(bootstrap: str) -> None:
    """Have the internal topics compacted soon, too."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for name in (OFFSETS, TRANSACTIONS):
        changes = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in COMPACTING.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def producer(bootstrap: str, transactional_id: str) -> Producer:
    made = Producer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0})
    made.init_transactions(WAIT_S)
    return made


def commit(bootstrap: str, group: str, offset: int) -> None:
    """Repeated while the group has no coordinator."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})

    def is_committed() -> bool:
        try:
            consumer.commit(offsets=[TopicPartition(TABLE, 0, offset)], asynchronous=False)
        except KafkaException as refused:
            error = refused.args[0]
            assert error.retriable() or error.code() in (KafkaError._WAIT_COORD, KafkaError.NOT_COORDINATOR)
            return False
        return True

    try:
        eventually(is_committed, f"{group} commits", WAIT_S)
    finally:
        consumer.close()


def fill(bootstrap: str) -> None:
    """Transactions of several producers, each third of which is aborted, with the offsets of a group."""
    producers = [producer(bootstrap, name) for name in PRODUCERS]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUPS[0], "log_level": 0})
    for number in range(ROUNDS):
        made = producers[number % len(producers)]
        made.begin_transaction()
        for key in range(KEYS):
            made.produce(TABLE, b"%d in %d" % (key, number) * 20, b"key %d" % key)
        offsets = [TopicPartition(TABLE, 0, number)]
        made.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
        if number % 3:
            made.commit_transaction(WAIT_S)
        else:
            made.abort_transaction(WAIT_S)
        commit(bootstrap, GROUPS[number % len(GROUPS)], 1_000 + number)
    consumer.close()
    made = producers[0]
    made.begin_transaction()
    made.produce(TABLE, None, b"key 0")  # a tombstone
    made.commit_transaction(WAIT_S)


def cleaned_up_to(data_dir: Path) -> dict[str, int]:
    """The checkpoint of compaction, by topic; a broker replaces the file as a whole."""
    path = data_dir / CHECKPOINT
    lines = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return {topic: int(offset) for topic, _, offset in lines}


def touch(bootstrap: str) -> None:
    """Append to each topic: a segment is closed by a record that is younger by `segment.ms`."""
    commit(bootstrap, GROUPS[1], 5_000)
    made = producer(bootstrap, PRODUCERS[1])
    made.begin_transaction()
    made.produce(TABLE, b"the last value", b"key 1")
    made.commit_transaction(WAIT_S)


def find(bootstrap: str) -> Found:
    table: dict[bytes, bytes] = {}
    for message in committed_records(bootstrap, TABLE):
        _put(table, message)
    offsets: dict[str, int] = {}
    for group in GROUPS:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        [found] = consumer.committed([TopicPartition(TABLE, 0)], WAIT_S)
        offsets[group] = found.offset
        consumer.close()
    return Found(table, offsets, _transactions(bootstrap))


def _put(table: dict[bytes, bytes], message: Message) -> None:
    key, value = message.key(), message.value()
    assert isinstance(key, bytes)
    if value is None:
        table.pop(key, None)
    else:
        assert isinstance(value, bytes)
        table[key] = value


def _transactions(bootstrap: str) -> dict[str, tuple[str, int, int]]:
    states: dict[str, tuple[str, int, int]] = {}

    def are_ended() -> bool:
        with WirePeer(bootstrap) as peer:
            answer = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=PRODUCERS)
        for each in answer.transaction_states:
            found = each.transaction_state, each.producer_id, each.producer_epoch
            states[each.transactional_id] = found
        errors = {each.error_code for each in answer.transaction_states}
        return errors == {ErrorCode.none} and all(
            state.startswith(("Complete", "Empty")) for state, _, _ in states.values()
        )

    eventually(are_ended, "all transactions have ended", WAIT_S)
    return states


def put_in_place(source: Path, target: Path) -> None:
    """Replace the logs in the data folder ``target`` by those of ``source``; both brokers are stopped.

    The ids of the topics stay those of the target's cluster.
    """
    for topic in TOPICS:
        folder = target / f"{topic}-0"
        for path in folder.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (source / folder.name).iterdir():
            if path.name != "partition.metadata":
                shutil.copy(path, folder)
    shutil.copy(source / CHECKPOINT, target / CHECKPOINT)
