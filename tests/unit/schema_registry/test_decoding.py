"""Keys and values by the schemas of a registry as JSON, and why some are not."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from nilometer.schema_registry import decoding as decoding_module
from nilometer.schema_registry.avro import parsed, write
from nilometer.schema_registry.client import Schema, SchemaRegistry, framed
from nilometer.schema_registry.decoding import Decoded, Decoding, Limits, NotDecoded
from support.stub_registry import StubRegistry

FIELDS = [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "raw", "type": "bytes"},
    {"name": "note", "type": ["null", "string"]},
]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
VALUE = {"at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.25"), "raw": b"\xff", "note": "grün"}


def in_avro(number: int, schema: Any, value: Any) -> bytes:
    return framed(number, write(parsed(Schema("AVRO", json.dumps(schema))), value))


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


def test_avro_and_json_schema_become_json(registry: StubRegistry):
    order, other = registry.add("t", ORDER), registry.add("t", "{}", "JSON")
    decoding = Decoding(SchemaRegistry(registry.url))
    data = [in_avro(order, ORDER, VALUE), framed(other, b'{"a": 1}'), None, b'{"plain": 1}']
    expected = '{"at":"2026-01-02T00:00:00Z","price":"1.25","raw":"/w==","note":"grün"}'
    assert (
        decoding.decode(data)
        == decoding.decode(data)
        == [
            Decoded(order, "Avro", expected.encode()),
            Decoded(other, "JSON Schema", b'{"a":1}'),
            None,
            None,
        ]
    )
    assert len(registry.requests) == 2


def test_what_cannot_be_decoded_has_a_reason_and_is_asked_for_once_a_call(registry: StubRegistry):
    order, other = registry.add("t", ORDER), registry.add("t", "x", "XML")
    broken, text = registry.add("t", "{"), registry.add("t", "{}", "JSON")
    data = {
        framed(order, b""): f"it is no value of schema {order}, Avro: EOFError",
        framed(other, b""): f"schema {other} of the registry: it is of type XML, which is not decoded",
        framed(broken, b""): f"schema {broken} of the registry: it cannot be read: JSONDecodeError",
        framed(text, b"{"): f"it is no value of schema {text}, JSON Schema: JSONDecodeError",
        framed(99, b""): "schema 99 of the registry: the registry does not have it",
        framed(99, b"again"): "schema 99 of the registry: the registry does not have it",
    }
    found = Decoding(SchemaRegistry(registry.url)).decode([*data])
    for one, reason in zip(found, data.values(), strict=True):
        assert isinstance(one, NotDecoded)
        assert one.reason.startswith(reason)
        assert one.error is None
    assert registry.requests.count("/schemas/ids/99") == 1


def test_a_registry_that_fails_is_asked_once_a_call(registry: StubRegistry):
    registry.answers_with = 503
    decoding = Decoding(SchemaRegistry(registry.url))
    for calls in (1, 2):
        found = decoding.decode([framed(1, b""), framed(2, b""), framed(1, b"")])
        assert all(
            isinstance(one, NotDecoded) and one.error is not None and "503" in one.reason for one in found
        )
        assert len(registry.requests) == calls


def test_a_call_asks_for_a_limited_number_of_schemas(registry: StubRegistry):
    data = [in_avro(registry.add("t", '"int"'), "int", number) for number in range(5)]
    decoding = Decoding(SchemaRegistry(registry.url))
    limits = Limits(schemas=2, seconds=60, value_bytes=100)
    for known in (2, 4, 5):
        found = decoding.decode([*data, framed(1, b"x" * 100)], limits)
        assert [type(one) for one in found[:known]] == [Decoded] * known
        assert all(isinstance(one, NotDecoded) and "too many" in one.reason for one in found[known:-1])
        assert found[-1] == NotDecoded("it is larger than 0 KiB")
        assert len(registry.requests) == known
    assert isinstance(decoding.decode([framed(77, b"")], Limits(9, 0, 100))[0], NotDecoded)
    assert len(registry.requests) == 5


def test_json_that_would_be_much_longer_than_its_value_is_not_made(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
):
    long_symbol = {"type": "enum", "name": "E", "symbols": ["A" * 500]}
    schema = {"type": "array", "items": long_symbol}
    number = registry.add("t", schema)
    data = in_avro(number, schema, ["A" * 500] * 10_000)
    [found] = Decoding(SchemaRegistry(registry.url)).decode([data])
    assert found == NotDecoded(f"it is no value of schema {number}, Avro: its JSON would be too long")
    monkeypatch.setattr(decoding_module, "GROWTH", 600)
    [found] = Decoding(SchemaRegistry(registry.url)).decode([data])
    assert isinstance(found, Decoded)


def test_without_fastavro_the_reason_says_what_to_install(
    registry: StubRegistry, monkeypatch: pytest.MonkeyPatch
):
    registry.add("t", '"int"')
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    [found] = Decoding(SchemaRegistry(registry.url)).decode([struct.pack(">bIb", 0, 1, 0)])
    assert isinstance(found, NotDecoded)
    assert "pip install 'nilometer[avro]'" in found.reason
