"""What the data folder of the tests of upgrades contains: written by one version, read by another."""

from __future__ import annotations

import confluent_kafka
import confluent_kafka.admin

from nilometer.wire.api_keys import ApiKey

from ..eventually import eventually
from ..wire.wire_peer import WirePeer

SETTINGS = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
PLAIN, COMPACTED, TRANSACTIONAL = "plain", "compacted", "transactional"
GROUP, WRITER = "readers", "writer"
RETENTION_MS = "123456789"
RECORDS, KEYS = 100, 5
COMMITTED = {0: 10, 1: 20}
WAIT_S = 60.0


def create_topics(bootstrap: str) -> None:
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        confluent_kafka.admin.NewTopic(PLAIN, 2, 1, config={"retention.ms": RETENTION_MS}),
        confluent_kafka.admin.NewTopic(COMPACTED, 1, 1, config={"cleanup.policy": "compact"}),
        confluent_kafka.admin.NewTopic(TRANSACTIONAL, 1, 1),
    ]
    for done in admin.create_topics(topics).values():
        done.result(WAIT_S)


def write(bootstrap: str) -> None:
    """Write everything once; it may be called several times."""
    for codec in ("none", "gzip"):
        produce_plain(bootstrap, codec, RECORDS // 2)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(COMPACTED, f"{number}".encode(), f"key-{number % KEYS}".encode())
    assert producer.flush(WAIT_S) == 0
    write_in_transactions(bootstrap)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    offsets = [confluent_kafka.TopicPartition(PLAIN, *place) for place in COMMITTED.items()]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def produce_plain(bootstrap: str, codec: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
    for number in range(count):
        producer.produce(PLAIN, f"{codec}-{number}".encode(), partition=number % 2)
    assert producer.flush(WAIT_S) == 0


def write_in_transactions(bootstrap: str) -> None:
    """Commit one transaction and abort another one."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": WRITER})
    producer.init_transactions(WAIT_S)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce(TRANSACTIONAL, b"committed" if commits else b"aborted")
        assert producer.flush(WAIT_S) == 0
        if commits:
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)


def check(bootstrap: str, *, times_written: int = 1) -> None:
    """Check that the broker serves everything that so many calls of :func:`write` wrote."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, PLAIN)
    (config,) = admin.describe_configs([resource]).values()
    assert config.result(WAIT_S)["retention.ms"].value == RETENTION_MS
    expected = [
        f"{codec}-{number}".encode() for codec in ("none", "gzip") for number in range(RECORDS // 2)
    ] * times_written
    found = read(bootstrap, PLAIN, 2, len(expected))
    assert sorted(found) == sorted(expected)
    assert read(bootstrap, TRANSACTIONAL, 1, times_written) == [b"committed"] * times_written
    assert read(bootstrap, COMPACTED, 1, KEYS)[-KEYS:], "the newest record of each key is there"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = [confluent_kafka.TopicPartition(PLAIN, number) for number in COMMITTED]
        committed = consumer.committed(places, WAIT_S)
        assert {one.partition: one.offset for one in committed} == COMMITTED
    finally:
        consumer.close()
    eventually(
        lambda: _transaction_state(bootstrap) == "CompleteAbort", "the transactional id is known", WAIT_S
    )


def _transaction_state(bootstrap: str) -> str:
    with WirePeer(bootstrap) as peer:
        answer = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=(WRITER,))
    return answer.transaction_states[0].transaction_state


def read(bootstrap: str, topic: str, partitions: int, count: int) -> list[bytes]:
    """Return at least ``count`` values of a topic, and all that come with them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        values: list[bytes] = []
        while len(values) < count:
            messages = consumer.consume(count, WAIT_S)
            assert messages, f"{len(values)} of {count} records of {topic}"
            values += [message.value() or b"" for message in messages]
        return values
    finally:
        consumer.close()
