"""Finding one's way in a log with real clients: by offset, by timestamp, back to the start, past the end."""

from __future__ import annotations

from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import kafka.structs
import pytest

from support.brokers.serving import Serving
from support.kafka.clients import (
    AiokafkaClient,
    ConfluentClient,
    JavaClient,
    KafkaClient,
    Written,
)
from support.kafka.java_driver import JavaDriver
from support.logs.segments import segment_files, stored_batches

EPOCH_MS = 1_700_000_000_000
STEP_MS = 1_000
COUNT = 300
PADDING = b" " * 10_000  # Kafka takes no segment below 1 MiB


@pytest.fixture(scope="module")
def timeline(broker: Serving, java: JavaDriver, clients: dict[str, KafkaClient]) -> str:
    """Records one second apart, each in a batch of its own, in several segments."""
    configs = {"segment.bytes": "1048576", "retention.ms": "-1"}
    topic = {"name": "timeline", "partitions": 1, "configs": configs}
    java.run("create_topics", config={"bootstrap.servers": broker.bootstrap}, topics=[topic])
    times = [EPOCH_MS + number * STEP_MS for number in range(COUNT)]
    clients["java"].write(
        "timeline", [Written(b"%d" % number + PADDING, timestamp=time) for number, time in enumerate(times)]
    )
    assert len(segment_files(broker.data_dir, "timeline", 0)) == 3
    assert len(stored_batches(broker.data_dir, "timeline", 0)) == COUNT
    return "timeline"


# Between two records, at one, before all, after all: the offset expected for each.
LOOKUPS = (
    (EPOCH_MS + 123 * STEP_MS - 1, 123),
    (EPOCH_MS + 200 * STEP_MS, 200),
    (EPOCH_MS - 5, 0),
    (EPOCH_MS + COUNT * STEP_MS, None),
)


def _confluent_lookup(broker: Serving, topic: str, timestamp: int) -> int | None:
    consumer = ConfluentClient(broker.bootstrap).consumer()
    try:
        [found] = consumer.offsets_for_times(
            [confluent_kafka.TopicPartition(topic, 0, timestamp)], timeout=10
        )
        return found.offset if found.offset >= 0 else None
    finally:
        consumer.close()


def _aiokafka_lookup(broker: Serving, topic: str, timestamp: int) -> int | None:
    async def lookup() -> int | None:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            found = (await consumer.offsets_for_times({partition: timestamp}))[partition]
            return None if found is None else found.offset
        finally:
            await consumer.stop()

    client = AiokafkaClient(broker.bootstrap)
    try:
        return client.run(lookup())
    finally:
        client.close()


def _kafka_python_lookup(broker: Serving, topic: str, timestamp: int) -> int | None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=None)
    try:
        partition = kafka.structs.TopicPartition(topic, 0)
        found = consumer.offsets_for_times({partition: timestamp})[partition]
        return None if found is None else found.offset
    finally:
        consumer.close()


@pytest.mark.parametrize("lookup", [_confluent_lookup, _aiokafka_lookup, _kafka_python_lookup])
def test_offsets_by_timestamp(
    lookup: Callable[[Serving, str, int], int | None], broker: Serving, timeline: str
) -> None:
    for timestamp, expected in LOOKUPS:
        found = lookup(broker, timeline, timestamp)
        # librdkafka gives "the end" as the end offset of the partition when nothing is that late.
        assert found == expected or (expected is None and found in (None, COUNT)), timestamp


def test_java_offsets_by_timestamp_and_list_offsets(broker: Serving, java: JavaDriver, timeline: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap}
    for timestamp, expected in LOOKUPS:
        found = java.run("offsets_for_times", config=config, topic=timeline, timestamp=timestamp)["0"]
        assert (None if found is None else found["offset"]) == expected
        listed = java.run("list_offsets", config=config, topic=timeline, spec=str(timestamp))
        assert listed["offset"] == (-1 if expected is None else expected)
    for spec, expected in (("earliest", 0), ("latest", COUNT), ("max_timestamp", COUNT - 1)):
        assert java.run("list_offsets", config=config, topic=timeline, spec=spec)["offset"] == expected


def test_java_seeks_anywhere_and_reads_again(broker: Serving, java: JavaDriver, timeline: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap}
    for offset in (0, 7, 150, COUNT - 1, 7):
        read = java.run(
            "seek_and_read",
            config=config,
            topic=timeline,
            partition=0,
            offset=offset,
            count=min(20, COUNT - offset),
        )
        records = [JavaClient.as_read(each) for each in read]
        assert [int(each.value or b"") for each in records][:1] == [offset]
        assert [each.offset for each in records] == [int(each.value or b"") for each in records]


def test_confluent_goes_back_in_one_session(broker: Serving, timeline: str) -> None:
    consumer = ConfluentClient(broker.bootstrap).consumer()
    try:
        consumer.assign([confluent_kafka.TopicPartition(timeline, 0, 250)])
        assert [message.offset() for message in consumer.consume(20, timeout=10)] == list(range(250, 270))
        consumer.seek(confluent_kafka.TopicPartition(timeline, 0, 3))
        offsets = [message.offset() for message in consumer.consume(20, timeout=10)]
        assert offsets == list(range(3, 23))
    finally:
        consumer.close()


def test_reading_past_the_end_falls_back_as_configured(broker: Serving, timeline: str) -> None:
    consumer = ConfluentClient(broker.bootstrap).consumer()  # auto.offset.reset=earliest
    try:
        consumer.assign([confluent_kafka.TopicPartition(timeline, 0, COUNT + 1000)])
        [message] = consumer.consume(1, timeout=20)
        assert message.error() is None and message.offset() == 0
    finally:
        consumer.close()
