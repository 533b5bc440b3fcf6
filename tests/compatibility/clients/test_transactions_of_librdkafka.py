"""A transactional producer of librdkafka, and what readers of committed records see of it (SPEC P-5)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.nilometer_cluster import NilometerCluster
from support.eventually import eventually

PARTITIONS = 2
WAIT_S = 120.0
TIMEOUT_CHECK_MS = "200"
numbers = count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NilometerBroker]:
    overrides = {
        "transaction.state.log.num.partitions": "2",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": TIMEOUT_CHECK_MS,
    }
    with NilometerBroker(tmp_path_factory.mktemp("transactions") / "data", overrides) as running:
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def topic(broker: NilometerBroker) -> str:
    name = f"topic-{next(numbers)}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)
    return name


def producer(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    made = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0, **settings}
    )
    made.init_transactions(WAIT_S)
    return made


def produce(made: Producer, topic: str, *values: str) -> None:
    for index, value in enumerate(values):
        made.produce(topic, value.encode(), partition=index % PARTITIONS)
    assert made.flush(WAIT_S) == 0


def read_to_end(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[str]:
    """Everything up to the end of each partition as a reader of this kind sees it: the LSO, or the HW."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values: list[str] = []
    ended: set[int] = set()

    def is_at_end() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
        elif message is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
        return len(ended) == PARTITIONS

    try:
        eventually(is_at_end, f"{topic} is read to its end", WAIT_S)
    finally:
        consumer.close()
    return sorted(values)


def test_p_5_a_reader_of_committed_records_sees_what_was_committed_and_nothing_else(
    broker: NilometerBroker, topic: str
) -> None:
    made = producer(broker.bootstrap, topic)
    for number, commit in enumerate((True, False, True)):
        made.begin_transaction()
        produce(made, topic, f"{number}-a", f"{number}-b", f"{number}-c")
        if commit:
            made.commit_transaction(WAIT_S)
        else:
            made.abort_transaction(WAIT_S)
    committed = ["0-a", "0-b", "0-c", "2-a", "2-b", "2-c"]
    eventually(lambda: read_to_end(broker.bootstrap, topic) == committed, "all markers are written", WAIT_S)
    everything = sorted([*committed, "1-a", "1-b", "1-c"])
    assert read_to_end(broker.bootstrap, topic, "read_uncommitted") == everything


def test_p_5_records_of_an_open_transaction_are_held_back_with_what_follows_them(
    broker: NilometerBroker, topic: str
) -> None:
    made = producer(broker.bootstrap, topic)
    made.begin_transaction()
    produce(made, topic, "open-0", "open-1")
    other = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    produce(other, topic, "behind-0", "behind-1")
    assert read_to_end(broker.bootstrap, topic) == []
    made.commit_transaction(WAIT_S)
    expected = ["behind-0", "behind-1", "open-0", "open-1"]
    eventually(lambda: read_to_end(broker.bootstrap, topic) == expected, "the LSO has moved on", WAIT_S)


def test_a_second_producer_with_the_same_id_fences_the_first_and_aborts_its_transaction(
    broker: NilometerBroker, topic: str
) -> None:
    first = producer(broker.bootstrap, topic)
    first.begin_transaction()
    produce(first, topic, "first")
    second = producer(broker.bootstrap, topic)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(WAIT_S)
    assert fenced.value.args[0].code() == KafkaError._FENCED
    second.begin_transaction()
    produce(second, topic, "second")
    second.commit_transaction(WAIT_S)
    eventually(lambda: read_to_end(broker.bootstrap, topic) == ["second"], "it is committed", WAIT_S)


def test_a_transaction_that_times_out_is_aborted_and_holds_readers_back_no_longer(
    broker: NilometerBroker, topic: str
) -> None:
    made = producer(broker.bootstrap, topic, **{"transaction.timeout.ms": 1_000, "message.timeout.ms": 1_000})
    made.begin_transaction()
    made.produce(topic, b"abandoned", partition=0)
    made.flush(WAIT_S)
    other = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    produce(other, topic, "behind")
    eventually(lambda: read_to_end(broker.bootstrap, topic) == ["behind"], "it has timed out", WAIT_S)
    with pytest.raises(KafkaException):
        made.commit_transaction(WAIT_S)


def committed_offsets(bootstrap: str, group: str, topic: str) -> list[int]:
    """As a consumer reads them that waits until they are stable."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        asked = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        return [found.offset for found in consumer.committed(asked, WAIT_S)]
    finally:
        consumer.close()


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_sent_with_a_transaction_count_once_it_is_committed(
    broker: NilometerBroker, topic: str, commit: bool
) -> None:
    """Consume, transform, produce: what was read is committed with what was written, or neither is."""
    source = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    produce(source, topic, "in-0", "in-1")
    group = f"group-of-{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    read: list[str] = []

    def has_read_both() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            read.append(message.value().decode())
        return len(read) == PARTITIONS

    made = producer(broker.bootstrap, topic)
    try:
        eventually(has_read_both, "the input is read", WAIT_S)
        made.begin_transaction()
        produce(made, topic, "out-0", "out-1")
        offsets = consumer.position(consumer.assignment())
        made.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
        (made.commit_transaction if commit else made.abort_transaction)(WAIT_S)
    finally:
        consumer.close()
    expected = ["in-0", "in-1", "out-0", "out-1"] if commit else ["in-0", "in-1"]
    eventually(lambda: read_to_end(broker.bootstrap, topic) == expected, "it is decided", WAIT_S)
    kept = [1, 1] if commit else [-1001, -1001]  # librdkafka's number for none
    eventually(lambda: committed_offsets(broker.bootstrap, group, topic) == kept, "it is decided", WAIT_S)


def test_a_transaction_is_finished_by_the_next_coordinator(tmp_path: Path) -> None:
    overrides = {"transaction.state.log.num.partitions": "1"}
    with NilometerCluster(tmp_path, overrides=overrides) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        made = producer(cluster.bootstrap, "x")
        made.begin_transaction()
        produce(made, "t", "a", "b")
        for name in ("t", "__transaction_state"):
            cluster.wait_full_isr(name, WAIT_S)
        coordinator = cluster.leader_of("__transaction_state")
        assert coordinator is not None
        cluster.kill(coordinator)
        made.commit_transaction(WAIT_S)
        made.begin_transaction()
        produce(made, "t", "c", "d")
        made.abort_transaction(WAIT_S)
        eventually(
            lambda: read_to_end(cluster.bootstrap, "t") == ["a", "b"], "the markers are written", WAIT_S
        )
        assert "Traceback" not in cluster.output()
