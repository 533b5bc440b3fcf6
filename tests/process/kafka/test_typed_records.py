"""Keys and values in the formats that a producer and a consumer were given, on one broker."""

from __future__ import annotations

import json
from typing import Any, assert_type

import msgspec
import pytest

import nilometer
from nilometer import JSON, Kafka, RecordDeserializationError, nullable
from nilometer.testing import Cluster


class Order(msgspec.Struct):
    id: int
    price: float = 0.0


async def test_values_have_the_type_of_their_format(kafka: Kafka, topic: str):
    async with kafka:
        orders = kafka.producer(key=str, value=Order)
        sent = await orders.send(topic, Order(7, 1.5), key="anna", partition=0)
        await (await orders.enqueue(topic, Order(8), key="ben", partition=0))
        assert sent.offset == 0
        async for record in kafka.consume(topic, key=str, value=Order, until_end=True):
            assert_type(record.key, str)
            assert_type(record.value, Order)
            assert record.value.id == 7 + record.offset
            assert record.key == ("anna", "ben")[record.offset]
        async for record in kafka.consume(topic, value=JSON, until_end=True):
            assert_type(record.key, bytes | None)
            assert_type(record.value, Any)
            assert record.value["id"] == 7 + record.offset
        async for record in kafka.consume(topic, until_end=True):
            assert_type(record.value, bytes | None)
        async for record in kafka.consume(topic, value=(json.dumps, json.loads), until_end=True):
            assert record.value["id"] in (7, 8)


async def test_a_tombstone_is_read_by_a_format_that_may_be_null(kafka: Kafka, topic: str):
    async with kafka:
        await kafka.producer(key=str, value=Order).send(topic, None, key="gone")
        [record] = [one async for one in kafka.consume(topic, key=str, value=nullable(Order), until_end=True)]
        assert_type(record.value, Order | None)
        assert (record.key, record.value) == ("gone", None)


async def test_a_transaction_sends_in_a_format(kafka: Kafka, topic: str):
    async with kafka:
        async with kafka.transaction(f"t-{topic}", value=JSON) as transaction:
            await transaction.send(topic, {"a": 1})
        [record] = [one async for one in kafka.consume(topic, value=JSON, until_end=True)]
        assert record.value == {"a": 1}


async def test_a_consumer_goes_on_after_a_record_of_another_format(kafka: Kafka, topic: str):
    async with kafka:
        for value in ('{"id": 1}', "no JSON", '{"id": "x"}', '{"id": 4}'):
            await kafka.send(topic, value, partition=0)
        failed: list[RecordDeserializationError] = []
        read: list[int] = []
        async with kafka.consume(topic, value=Order, group=f"g-{topic}", until_end=True) as records:
            while True:
                try:
                    read.append((await anext(records)).value.id)
                except RecordDeserializationError as error:
                    failed.append(error)
                except StopAsyncIteration:
                    break
        assert read == [1, 4]
        assert [error.record.offset for error in failed] == [1, 2]
        assert failed[0].record.value == b"no JSON"
        assert failed[0].field == "value"
        assert str(failed[1]).startswith(
            f"INVALID_RECORD: the value of {topic}-0 at offset 2 cannot be decoded:"
        )
        assert isinstance(failed[1].__cause__, msgspec.ValidationError)
        assert (await kafka.admin.group_offsets(f"g-{topic}"))[nilometer.TopicPartition(topic, 0)] == 4


async def test_a_record_of_another_format_that_is_not_handled_is_not_committed(kafka: Kafka, topic: str):
    async with kafka:
        for value in ("1", "x", "3"):
            await kafka.send(topic, value, partition=0)
        for expected in ([1], []):
            read: list[int] = []
            with pytest.raises(RecordDeserializationError):
                async with kafka.consume(topic, value=int, group=f"g-{topic}") as records:
                    while True:
                        read.append((await anext(records)).value)
            assert read == expected


async def test_the_records_before_one_of_another_format_are_a_batch(kafka: Kafka, topic: str):
    async with kafka:
        for value in ("1", "2", "x", "4"):
            await kafka.send(topic, value, partition=0)
        async with kafka.consume(topic, value=int, until_end=True) as records:
            assert [record.value for record in await records.next_batch()] == [1, 2]
            with pytest.raises(RecordDeserializationError, match="offset 2"):
                await records.next_batch()
            assert [record.value for record in await records.next_batch()] == [4]
            assert await records.next_batch() == []


def test_the_wrong_type_is_refused_by_name(cluster: Cluster, topic: str):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        orders = kafka.producer(value=Order)
        with pytest.raises(TypeError, match=f"the value of a record for {topic} cannot be encoded: it is of"):
            orders.send(topic, {"id": 1})  # type: ignore[arg-type]
