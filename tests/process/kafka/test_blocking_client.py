"""The client without asyncio, ``with nilometer.connect(...)``: the same methods, which wait."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, assert_type

import pytest

import nilometer
from nilometer import JSON, KafkaError, RebalanceListener, TopicPartition
from nilometer.kafka import Kafka, KafkaAdmin, RecordMetadata, Records, Transaction, TypedProducer
from nilometer.kafka.blocking import (
    BlockingAdmin,
    BlockingKafka,
    BlockingProducer,
    BlockingQueue,
    BlockingRecords,
    BlockingTransaction,
)
from nilometer.kafka.queue import Queue
from nilometer.testing import Cluster

PAIRS = [
    (Kafka, BlockingKafka, {"close"}),
    (TypedProducer, BlockingProducer, set[str]()),
    (Transaction, BlockingTransaction, {"on_committed", "send_encoded"}),
    (Records, BlockingRecords, {"closed", "has_buffered", "next_buffered", "on_committed", "processed"}),
    (KafkaAdmin, BlockingAdmin, set[str]()),
    (Queue, BlockingQueue, set[str]()),
]


@pytest.mark.parametrize(
    ("waiting", "blocking", "without"), PAIRS, ids=lambda one: getattr(one, "__name__", "")
)
def test_each_method_is_there_by_its_name(waiting: type, blocking: type, without: set[str]):
    names = {name for name, _ in inspect.getmembers(waiting) if not name.startswith("_")}
    there = {name for name, _ in inspect.getmembers(blocking) if not name.startswith("_")}
    assert names - there == without


def test_what_is_sent_is_read(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        sent = kafka.send(topic, "hello", key="anna", partition=1)
        assert_type(sent, RecordMetadata)
        assert (sent.partition, sent.offset) == (1, 0)
        deliveries = [kafka.enqueue(topic, str(n), partition=0) for n in range(20)]
        assert [delivery.result().offset for delivery in deliveries] == list(range(20))
        assert deliveries[0].done()
        values = [record.value for record in kafka.consume(topic, partitions=[0], until_end=True)]
        assert_type(values, list[bytes | None])
        assert values == [str(n).encode() for n in range(20)]
        batches = list(kafka.consume(topic, partitions=[0], until_end=True).batches(5))
        assert [record.offset for batch in batches for record in batch] == list(range(20))
        assert kafka.admin.offsets(topic)[0] == (0, 20)


def test_formats_have_their_types(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        kafka.producer(key=str, value=list[int]).send(topic, [1, 2], key="k")
        for record in kafka.consume(topic, key=str, value=list[int], until_end=True):
            assert_type(record.value, list[int])
            assert (record.key, record.value) == ("k", [1, 2])
        for record in kafka.consume(topic, value=JSON, until_end=True):
            assert_type(record.value, Any)


def test_a_group_commits_what_was_processed(cluster: Cluster, topic: str):
    partition = TopicPartition(topic, 0)
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        for n in range(5):
            kafka.send(topic, str(n), partition=0)
        with pytest.raises(ZeroDivisionError), kafka.consume(topic, group=f"g-{topic}") as records:
            for record in records:
                assert 1 // (2 - record.offset) is not None
        with kafka.consume(topic, group=f"g-{topic}", auto_commit=False) as records:
            assert next(records).offset == 2
            assert records.position(partition) == 3
            records.seek(partition, 4)
            records.commit(next(records))
            assert records.committed([partition]) == {partition: 5}


def test_a_transaction(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        kafka.send(topic, "10", partition=0)
        with kafka.consume(topic, group=f"g-{topic}", auto_commit=False) as records:
            with pytest.raises(ZeroDivisionError), kafka.transaction(f"t-{topic}") as transaction:
                transaction.send(topic, "aborted", partition=1)
                raise ZeroDivisionError
            with kafka.transaction(f"t-{topic}") as transaction:
                payment = next(records)
                transaction.send(topic, str(2 * int(payment.value or b"")), partition=1)
                transaction.commit_offsets(records)
        read = kafka.consume(topic, partitions=[1], until_end=True, read_committed=True)
        assert [record.value for record in read] == [b"20"]
        assert kafka.admin.group_offsets(f"g-{topic}") == {TopicPartition(topic, 0): 1}


def test_a_listener_may_commit(cluster: Cluster, topic: str):
    revoked: list[TopicPartition] = []

    class Committing(RebalanceListener):
        def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            records.commit()
            revoked.extend(partitions)

    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        kafka.send(topic, "x", partition=0)
        with kafka.consume(topic, group=f"g-{topic}", auto_commit=False, listener=Committing()) as records:
            next(records)
        assert [partition.partition for partition in revoked] == [0, 1]
        assert kafka.admin.group_offsets(f"g-{topic}")[TopicPartition(topic, 0)] == 1


def test_threads_share_a_connection(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        threads = [
            threading.Thread(target=lambda: [kafka.send(topic, "x") for _ in range(20)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(1 for _ in kafka.consume(topic, until_end=True)) == 80


def test_errors_are_raised_where_the_call_is(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        with pytest.raises(KafkaError) as twice:
            kafka.admin.create_topic(topic)
        assert twice.value.name == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(KafkaError, match="not connected"):
        kafka.inner.consume(topic)
    with pytest.raises(nilometer.ConnectionLost), nilometer.connect("127.0.0.1:1"):
        pass
    assert not [one for one in threading.enumerate() if one.name == "nilometer-client"]


def test_ctrl_c_ends_a_wait(cluster: Cluster, topic: str):
    script = (
        "import nilometer\n"
        f"with nilometer.connect({cluster.bootstrap_servers!r}) as kafka:\n"
        f"    with kafka.consume({topic!r}, group='g-{topic}') as records:\n"
        "        print('waiting', flush=True)\n"
        "        next(records)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert said.decode().rstrip().endswith("KeyboardInterrupt"), said.decode()
