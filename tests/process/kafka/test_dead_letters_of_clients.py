"""`Records.process`: a record that fails is tried again, and then sent to the dead-letter topic."""

from __future__ import annotations

import asyncio

import pytest

import nilometer
from nilometer import JSON, KafkaError, Record, TopicPartition
from nilometer.kafka import Kafka
from nilometer.testing import Cluster


async def dead_letters(kafka: Kafka, topic: str) -> list[Record]:
    return [record async for record in kafka.consume(f"{topic}.dlq", until_end=True)]


async def test_a_record_that_fails_is_tried_again_and_then_a_dead_letter(kafka: Kafka, topic: str):
    async with kafka:
        producer = kafka.producer(value=JSON)
        for price in (5, -1, 7):
            await producer.send(topic, price, key="k", headers={"a": "1"}, partition=0, timestamp=1_000)
        handled: list[int] = []

        async def handle(record: Record[bytes | None, int]) -> None:
            handled.append(record.value)
            if record.value < 0:
                raise ValueError("a negative price")

        records = kafka.consume(topic, value=int, group=f"g-{topic}", until_end=True)
        await records.process(handle, attempts=3, pause_ms=1)
        assert handled == [5, -1, -1, -1, 7]
        assert (await kafka.admin.group_offsets(f"g-{topic}"))[TopicPartition(topic, 0)] == 3
        [letter] = await dead_letters(kafka, topic)
        assert (letter.key, letter.value) == (b"k", b"-1")
        assert letter.headers == (
            ("a", b"1"),
            ("dlq.topic", topic.encode()),
            ("dlq.partition", b"0"),
            ("dlq.offset", b"1"),
            ("dlq.timestamp", b"1000"),
            ("dlq.group", f"g-{topic}".encode()),
            ("dlq.attempts", b"3"),
            ("dlq.error", b"ValueError"),
            ("dlq.reason", b"a negative price"),
        )


async def test_a_record_that_succeeds_at_last_is_no_dead_letter(kafka: Kafka, cluster: Cluster, topic: str):
    cluster.create_topic(f"{topic}.dlq")
    async with kafka:
        await kafka.send(topic, "x")
        attempts: list[int] = []

        def handle(record: Record) -> None:
            attempts.append(record.offset)
            if len(attempts) < 3:
                raise OSError("not yet")

        await kafka.consume(topic, until_end=True).process(handle, pause_ms=1)
        assert attempts == [0, 0, 0]
        assert await dead_letters(kafka, topic) == []


async def test_a_record_of_another_format_is_a_dead_letter_at_once(kafka: Kafka, topic: str):
    async with kafka:
        for value in ("1", "x", "3"):
            await kafka.send(topic, value, partition=0)
        read: list[int] = []
        records = kafka.consume(topic, value=int, group=f"g-{topic}", until_end=True)
        await records.process(lambda record: read.append(record.value))
        assert read == [1, 3]
        [letter] = await dead_letters(kafka, topic)
        assert (letter.value, letter.header("dlq.attempts")) == (b"x", b"0")
        assert letter.header("dlq.error") == b"RecordDeserializationError"


async def test_without_its_dead_letter_a_record_is_not_committed(cluster: Cluster, topic: str):
    settings = {"allow.auto.create.topics": False, "max.block.ms": 500}

    def handle(record: Record) -> None:
        if record.offset == 1:
            raise ValueError

    async with nilometer.connect(cluster.bootstrap_servers, settings=settings) as kafka:
        for n in range(3):
            await kafka.send(topic, str(n), partition=0)
        with pytest.raises(KafkaError, match=f"UNKNOWN_TOPIC_OR_PARTITION.*{topic}.dlq"):
            await kafka.consume(topic, group=f"g-{topic}").process(handle, attempts=1)
        assert (await kafka.admin.group_offsets(f"g-{topic}"))[TopicPartition(topic, 0)] == 1


async def test_a_cancelled_task_sends_no_dead_letter(kafka: Kafka, cluster: Cluster, topic: str):
    cluster.create_topic(f"{topic}.dlq")
    async with kafka:
        await kafka.send(topic, "x", partition=0)
        begun = asyncio.Event()

        async def handle(_record: Record) -> None:
            begun.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(kafka.consume(topic, group=f"g-{topic}").process(handle))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await dead_letters(kafka, topic) == []
        assert (await kafka.admin.group_offsets(f"g-{topic}")).get(TopicPartition(topic, 0), 0) == 0


def test_without_asyncio(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        kafka.send(topic, "x")

        def handle(record: Record) -> None:
            kafka.send(topic, b"seen: " + (record.value or b""), partition=1)  # in a thread: it may wait
            raise ValueError("after all")

        kafka.consume(topic, partitions=[0], until_end=True).process(handle, attempts=1)
        kafka.consume(topic, partitions=[1], until_end=True).process(lambda _record: None)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"pause_ms": -1}])
async def test_what_is_no_number_of_attempts_is_refused(kafka: Kafka, topic: str, wrong: dict[str, int]):
    async with kafka:
        with pytest.raises(ValueError, match="at least one attempt"):
            await kafka.consume(topic).process(lambda _record: None, **wrong)
