"""Avro by the schemas of a registry: which schemas are read, and what is written is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from nilometer.schema_registry.avro import DECIMAL_BYTES_MAX, DEPTH_MAX, parsed, read, write
from nilometer.schema_registry.client import BadValue, Schema, UnusableSchema, framed, schema_id


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": kind} for one, kind in fields]}


def avro(schema: Any, *references: tuple[str, Schema]) -> Schema:
    return Schema("AVRO", json.dumps(schema), references)


AT = {"type": "long", "logicalType": "timestamp-millis"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = record(
    "Order", ("id", "long"), ("at", AT), ("price", PRICE), ("tags", {"type": "map", "values": "int"})
)
VALUE = {"id": 7, "at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.25"), "tags": {"a": 1}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [(ORDER, VALUE), ("int", 7), (["null", "string"], None), ({"type": "array", "items": "string"}, ["a"])],
)
def test_what_is_written_is_read(schema: Any, value: Any):
    known = parsed(avro(schema))
    data = framed(9, write(known, value))
    assert schema_id(data) == 9
    assert read(known, data) == value
    for wrong in (data[:-1], data + b"x"):
        with pytest.raises(BadValue):
            read(known, wrong)


def test_a_value_is_read_as_another_schema_has_it():
    older = parsed(avro(record("Order", ("id", "int"), ("note", "string"))))
    newer = parsed(
        avro(
            {**ORDER, "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "int", "default": 3}]}
        )
    )
    assert read(older, framed(1, write(older, {"id": 7, "note": "x"})), newer) == {"id": 7, "n": 3}


@pytest.mark.parametrize("value", [{"id": 7}, {**VALUE, "more": 1}, {**VALUE, "id": "x"}])
def test_what_does_not_fit_its_schema_is_not_written(value: Any):
    with pytest.raises(Exception, match=r"id|at|more"):
        write(parsed(avro(ORDER)), value)


def test_a_schema_may_refer_to_others():
    place = avro(record("Place", ("zip", "string")))
    town = avro(record("Town", ("place", "Place")), ("Place", place))
    schema = parsed(avro(record("Order", ("to", "Place"), ("in", "Town")), ("Place", place), ("Town", town)))
    value = {"to": {"zip": "1"}, "in": {"place": {"zip": "2"}}}
    assert read(schema, framed(1, write(schema, value))) == value


def chain(levels: int) -> list[Any]:
    """A union of records, each of which has the one before."""
    first = record("R0", ("x", "int"))
    return [first, *(record(f"R{n}", ("x", f"R{n - 1}")) for n in range(1, levels))]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (record("Node", ("next", ["null", "Node"])), "it cannot be read: type Node is recursive"),
        (record("A", ("b", record("B", ("a", {"type": "map", "values": "A"})))), "type A is recursive"),
        (chain(DEPTH_MAX + 1), f"values have more than {DEPTH_MAX} levels"),
        ({"type": "array", "items": "null"}, "a null that is not in a union takes no bytes"),
        ({"type": "array", "items": {"type": "null"}}, "takes no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "type F takes no bytes"),
        (record("Empty"), "type Empty has no fields"),
        ({"type": "array"}, "it cannot be read"),
        (7, "it cannot be read"),
    ],
)
def test_schemas_whose_values_are_not_read(schema: Any, said: str):
    with pytest.raises(UnusableSchema, match=said):
        parsed(avro(schema))


DECIMALS = {
    "bytes": {"type": "bytes", "logicalType": "decimal", "precision": 9},
    "fixed": {
        "type": "fixed",
        "name": "F",
        "size": DECIMAL_BYTES_MAX + 1,
        "logicalType": "decimal",
        "precision": 9,
    },
}


@pytest.mark.parametrize("kind", DECIMALS)
def test_a_decimal_whose_making_takes_the_square_of_its_length_is_not_read(kind: str):
    # One of 250 kB held all threads for five seconds.
    number = b"\1" * (DECIMAL_BYTES_MAX + 1)
    data = number if kind == "fixed" else write("bytes", number)
    with pytest.raises(BadValue, match="a decimal has more than 4096 bytes"):
        read(parsed(avro(DECIMALS[kind])), framed(1, data))
    longest = framed(1, write("bytes", number[1:]))
    assert isinstance(read(parsed(avro(DECIMALS["bytes"])), longest), Decimal)


class Walked(tuple[tuple[str, Schema], ...]):
    """References that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[tuple[str, Schema]]:
        Walked.times += 1
        return super().__iter__()


def test_a_schema_that_is_referred_to_on_many_ways_is_parsed_once(monkeypatch: pytest.MonkeyPatch):
    # Each refers to the next one by two names: 4,096 ways lead to the last.
    monkeypatch.setattr(Walked, "times", 0)
    schema = avro(record("R0", ("x", "int")))
    for level in range(1, 13):
        text = json.dumps(record(f"R{level}", ("x", f"R{level - 1}")))
        schema = Schema("AVRO", text, Walked((("a", schema), ("b", schema))))
    value: Any = {"x": 1}
    for _ in range(12):
        value = {"x": value}
    known = parsed(schema)
    assert read(known, framed(1, write(known, value))) == value
    assert Walked.times < 2 * 12


def test_a_schema_of_another_kind_is_no_avro():
    with pytest.raises(UnusableSchema, match="it is of type JSON, and only AVRO is read"):
        parsed(Schema("JSON", "{}"))


def test_a_deep_schema_that_is_no_deeper_than_allowed_is_read():
    schema = parsed(avro(chain(DEPTH_MAX - 2)))
    value: Any = {"x": 1}
    for _ in range(DEPTH_MAX - 3):
        value = {"x": value}
    assert read(schema, framed(1, write(schema, value))) == value


@pytest.mark.parametrize(
    ("data", "number"), [(b"", None), (b"\x01\0\0\0\1", None), (b"\0\0\0\0", None), (b"\0\0\0\1\0", 256)]
)
def test_the_id_of_a_schema(data: bytes, number: int | None):
    assert schema_id(data) == number
