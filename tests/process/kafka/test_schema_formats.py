"""Avro and JSON Schema by a registry: what is sent, read, and said if the registry or a value is wrong."""

from __future__ import annotations

import io
import json
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type

import fastavro
import msgspec
import pytest

import nilometer
from nilometer import Avro, JsonSchema, Kafka, RecordDeserializationError, RegistryError, SchemaRegistry
from nilometer.schema_registry.client import Schema
from nilometer.testing import Cluster
from support.authority import Authority
from support.stub_registry import StubRegistry

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
AT = datetime(2026, 1, 2, tzinfo=UTC)


class Order(msgspec.Struct):
    id: int
    at: datetime
    price: Decimal
    note: str | None = None


@dataclass
class Name:
    first: str


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


async def test_values_and_keys_in_avro_are_read_as_they_were_sent(
    kafka: Kafka, topic: str, registry: StubRegistry
):
    client = SchemaRegistry(registry.url)
    name = {"type": "record", "name": "Name", "fields": [{"name": "first", "type": "string"}]}
    async with kafka:
        orders = kafka.producer(key=Avro(client, Name, schema=name), value=Avro(client, Order, schema=ORDER))
        for number in range(3):
            await orders.send(topic, Order(number, AT, Decimal("1.50")), key=Name("anna"))
        reading = SchemaRegistry(registry.url)
        records = kafka.consume(topic, key=Avro(reading, Name), value=Avro(reading, Order), until_end=True)
        read = [record async for record in records]
        assert_type(read[0].value, Order)
        assert [(one.key, one.value) for one in read] == [
            (Name("anna"), Order(number, AT, Decimal("1.50"))) for number in range(3)
        ]
        [first, *_] = [one async for one in kafka.consume(topic, value=Avro(registry.url), until_end=True)]
        assert first.value == {"id": 0, "at": AT, "price": Decimal("1.50"), "note": None}
    assert sorted(registry.requests) == sorted(
        [
            f"POST /subjects/{topic}-key/versions",
            f"POST /subjects/{topic}-value/versions",
            *("/schemas/ids/1", "/schemas/ids/1", "/schemas/ids/2"),
        ]
    )


async def test_what_another_client_wrote_is_read(kafka: Kafka, topic: str, registry: StubRegistry):
    number = registry.add(f"{topic}-value", ORDER)
    out = io.BytesIO()
    value = {"id": 7, "at": AT, "price": Decimal("2.00"), "note": "x"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(ORDER))), value)
    async with kafka:
        await kafka.send(topic, struct.pack(">bI", 0, number) + out.getvalue())
        [one] = [one async for one in kafka.consume(topic, value=Avro(registry.url, Order), until_end=True)]
        assert one.value == Order(7, AT, Decimal("2.00"), "x")
        newer = {**ORDER, "fields": [ORDER["fields"][0], {"name": "n", "type": "int", "default": 5}]}  # type: ignore[index]
        as_newer = Avro(registry.url, schema=newer)
        [one] = [one async for one in kafka.consume(topic, value=as_newer, until_end=True)]
        assert one.value == {"id": 7, "n": 5}


async def test_a_value_is_written_by_the_newest_schema_of_its_subject(
    kafka: Kafka, topic: str, registry: StubRegistry
):
    async with kafka:
        producer = kafka.producer(value=Avro(registry.url))
        with pytest.raises(RegistryError, match=f"has no subject {topic}-value"):
            await producer.send(topic, {"id": 1})
        number = registry.add(f"{topic}-value", '"int"')
        await producer.send(topic, 5, partition=0)
        async with kafka.transaction(f"t-{topic}", value=Avro(registry.url)) as transaction:
            await transaction.send(topic, 6, partition=0)
        with pytest.raises(TypeError, match=f"the value of a record for {topic} cannot be encoded"):
            await producer.send(topic, "six")
        read = [one.value async for one in kafka.consume(topic, value=Avro(registry.url), until_end=True)]
        assert read == [5, 6]
        raw = [one.value async for one in kafka.consume(topic, until_end=True)]
        assert raw[0] == struct.pack(">bI", 0, number) + b"\x0a"


async def test_a_schema_that_may_not_be_registered_is_looked_up(
    kafka: Kafka, topic: str, registry: StubRegistry
):
    form = Avro(registry.url, schema=ORDER, subject="orders", register=False)
    async with kafka:
        with pytest.raises(
            RegistryError, match=r"subject orders of the registry .* does not have this schema"
        ):
            await kafka.producer(value=form).send(topic, {"id": 1, "at": AT, "price": Decimal(1)})
        registry.add("orders", ORDER)
        await kafka.producer(value=form).send(topic, {"id": 1, "at": AT, "price": Decimal(1)})
    assert form.decode(form.encode({"id": 1, "at": AT, "price": Decimal(1)}))["note"] is None
    assert registry.requests[:2] == ["POST /subjects/orders"] * 2


async def test_json_by_a_schema_is_read_without_the_registry(
    kafka: Kafka, topic: str, registry: StubRegistry
):
    async with kafka:
        await kafka.producer(value=JsonSchema(registry.url, Order)).send(topic, Order(7, AT, Decimal(1)))
        registry.answers_with = 500
        [one] = [
            one async for one in kafka.consume(topic, value=JsonSchema(registry.url, Order), until_end=True)
        ]
        assert_type(one.value, Order)
        assert one.value == Order(7, AT, Decimal(1))
        [raw] = [one async for one in kafka.consume(topic, until_end=True)]
        assert raw.value is not None
        assert raw.value[:5] == struct.pack(">bI", 0, 1)
        assert json.loads(raw.value[5:])["id"] == 7
    assert json.loads(registry.schemas[0])["$ref"] == "#/$defs/Order"
    assert registry.requests == [f"POST /subjects/{topic}-value/versions"]


async def test_values_that_cannot_be_decoded_name_their_place_and_schema(
    kafka: Kafka, topic: str, registry: StubRegistry
):
    number, other = registry.add("x", ORDER), registry.add("x", "{}", "JSON")
    wrong = {
        b"plain": "it does not begin with the 5 bytes of a schema registry",
        struct.pack(">bI", 0, 99): "schema 99 of the registry: the registry does not have it",
        struct.pack(">bI", 0, number)
        + b"\x02": "the value, written with schema 1 of the registry, does not fit: EOFError",
        struct.pack(">bI", 0, other) + b"{}": "schema 2 of the registry: it is of type JSON, and only AVRO",
        struct.pack(">bI", 0, registry.add("x", '"int"'))
        + b"\x02": "the value, written with schema 3 of the registry, does not fit: Expected `object`",
    }
    async with kafka:
        for value in wrong:
            await kafka.send(topic, value, partition=0)
        said: list[str] = []
        async with kafka.consume(topic, value=Avro(registry.url, Order), until_end=True) as records:
            while True:
                try:
                    await anext(records)
                except RecordDeserializationError as error:
                    said.append(str(error))
                except StopAsyncIteration:
                    break
    assert len(said) == len(wrong)
    for offset, (text, reason) in enumerate(zip(said, wrong.values(), strict=True)):
        place = f"INVALID_RECORD: the value of {topic}-0 at offset {offset} cannot be decoded: "
        assert text.startswith(place + reason)


def poll(records: Any, *, in_batches: bool) -> Any:
    return records.next_batch() if in_batches else anext(records)


@pytest.mark.parametrize("in_batches", [False, True])
async def test_while_the_registry_does_not_answer_no_record_is_passed_over(
    kafka: Kafka, topic: str, registry: StubRegistry, in_batches: bool
):
    async with kafka:
        producer = kafka.producer(value=Avro(registry.url, schema='"int"'))
        for number in range(3):
            await producer.send(topic, number, partition=0)
        registry.answers_with = 500
        async with kafka.consume(
            topic, value=Avro(registry.url), group=f"g-{topic}", until_end=True
        ) as records:
            for _ in range(2):
                with pytest.raises(RegistryError, match="answers 500") as error:
                    await poll(records, in_batches=in_batches)
                assert error.value.retriable
            registry.answers_with = None
            first = await poll(records, in_batches=in_batches)
            read = [one.value for one in first] if in_batches else [first.value]
            read += [one.value async for one in records]
            assert read == [0, 1, 2]
        offsets = await kafka.admin.group_offsets(f"g-{topic}")
        assert offsets[nilometer.TopicPartition(topic, 0)] == 3


def test_without_asyncio_too(cluster: Cluster, topic: str, registry: StubRegistry):
    with nilometer.connect(cluster.bootstrap_servers) as kafka:
        kafka.producer(value=Avro(registry.url, schema='"int"')).send(topic, 1)
        assert [one.value for one in kafka.consume(topic, value=Avro(registry.url), until_end=True)] == [1]


def test_a_registry_with_tls_and_certificates_of_clients(tmp_path: Path):
    authority = Authority(tmp_path)
    server, client = authority.issue("registry", "/CN=registry"), authority.issue("client", "/CN=client")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server)
    tls.load_verify_locations(authority.certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    with StubRegistry(tls) as registry:
        registry.add("t", '"int"')
        trusting = {"ssl.ca.location": str(authority.certificate)}
        known = SchemaRegistry(registry.url, {**trusting, "ssl.certificate.location": str(client)})
        assert known.by_id(1) == Schema("AVRO", '"int"')
        with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(registry.url).by_id(1)
        with pytest.raises(RegistryError, match="does not answer"):
            SchemaRegistry(registry.url, trusting).by_id(1)
