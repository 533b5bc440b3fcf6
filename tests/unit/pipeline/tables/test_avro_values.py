"""Avro values with a registry's header become rows, with schemas that change."""

from __future__ import annotations

import io
import json
import struct
import uuid
from datetime import UTC, date, datetime

import fastavro
import pytest

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.avro_values import avro_decoder, parse_avro_schema
from nilometer.pipeline.tables.json_schema import json_schema_of
from nilometer.pipeline.tables.schema_registry import SchemaRegistry
from nilometer.pipeline.tables.table_writer import TableOptions
from nilometer.pipeline.tables.value_types import SchemaError
from nilometer.pipeline.tables.values import RejectedValue
from support.pipeline.stub_registry import StubRegistry
from support.pipeline.table_batches import Writing, records_of

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "zip", "type": "string"}]}
FIELDS = [
    {"name": "id", "type": "int"},
    {"name": "name", "type": ["null", "string"], "default": None},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "on", "type": {"type": "int", "logicalType": "date"}},
    {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    {"name": "to", "type": PLACE},
    {"name": "via", "type": {"type": "array", "items": "Place"}},
    {"name": "raw", "type": "bytes"},
]
AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
VALUE = {
    "id": 7,
    "name": None,
    "at": AT,
    "on": date(2024, 5, 1),
    "uid": uuid.UUID(int=5),
    "kind": "B",
    "to": {"zip": "1"},
    "via": [{"zip": "2"}],
    "raw": b"\xff",
}


def record(fields):
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


def encoded(schema_id, schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return struct.pack(">bI", 0, schema_id) + out.getvalue()


@pytest.fixture
def registry():
    with StubRegistry() as running:
        yield running


def test_values_are_rows_of_the_newest_schema_and_each_schema_is_read_once(registry):
    old, new = record(FIELDS), record([*FIELDS, {"name": "more", "type": "double"}])
    first, second = registry.add("t-value", old), registry.add("t-value", new)
    client = SchemaRegistry(registry.url)
    row = parse_avro_schema(client.latest("t"))
    decode = avro_decoder(row, client)
    expected = {**VALUE, "uid": str(VALUE["uid"]), "more": None}
    for _ in range(3):
        assert decode(encoded(first, old, VALUE)) == expected
    assert decode(encoded(second, new, {**VALUE, "more": 1.5})) == {**expected, "more": 1.5}
    assert sorted(registry.requests) == [
        "/schemas/ids/1",
        "/schemas/ids/2",
        "/subjects/t-value/versions/latest",
    ]


def test_what_is_no_value_of_a_known_schema_is_rejected_with_the_reason(registry):
    schema = record(FIELDS[:2])
    number = registry.add("t-value", schema)
    client = SchemaRegistry(registry.url)
    decode = avro_decoder(parse_avro_schema(client.latest("t")), client)
    whole = encoded(number, schema, {"id": 1, "name": "n"})
    for value, reason in (
        (b"", "5 bytes"),
        (b'{"id": 1}', "5 bytes"),
        (whole[:6], "no value of schema 1"),
        (whole + b"x", "bytes are left"),
        (struct.pack(">bI", 0, 99), "no schema 99"),
    ):
        with pytest.raises(RejectedValue, match=reason):
            decode(value)
    assert decode(whole) == {"id": 1, "name": "n"}


def test_a_registry_that_fails_is_an_error_and_no_rejected_value(registry):
    client = SchemaRegistry(registry.url)
    row = parse_avro_schema(json.dumps(record(FIELDS[:1])))
    registry.answers_with = 500
    with pytest.raises(PipelineError, match="answers 500"):
        avro_decoder(row, client)(struct.pack(">bI", 0, 1))
    registry.answers_with = None
    with pytest.raises(PipelineError, match="no subject t-value"):
        client.latest("t")
    with pytest.raises(PipelineError, match="http://"):
        SchemaRegistry("file:///etc/passwd")


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ({"type": "map", "values": "int"}, r"\$\.x: type map"),
        (["int", "string"], r"\$\.x: a union"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, r"\$\.x: type bytes \(decimal\)"),
        (["null", "Order"], r"\$\.x: type Order is recursive"),
        ("Nothing", r"\$\.x: type Nothing is not supported"),
    ],
)
def test_a_type_that_is_no_column_is_named(kind, where):
    with pytest.raises(SchemaError, match=where):
        parse_avro_schema(json.dumps(record([{"name": "x", "type": kind}])))


def test_a_new_schema_adds_and_widens_columns_of_the_table(registry, tmp_path):
    old = record([{"name": "id", "type": "int"}])
    new = record([{"name": "id", "type": "long"}, {"name": "name", "type": "string"}])
    options = TableOptions("iceberg", registry=registry.url)

    def write(batch_id, values):
        row = parse_avro_schema(SchemaRegistry(registry.url).latest("t"))
        writing = Writing(tmp_path, options, json.dumps(json_schema_of(row)))
        assert writing.write(batch_id, records_of(values, first=10 * batch_id))
        return writing

    first = registry.add("t-value", old)
    write(0, [encoded(first, old, {"id": 1})])
    second = registry.add("t-value", new)
    writing = write(1, [encoded(second, new, {"id": 2**40, "name": "n"}), encoded(first, old, {"id": 2})])
    assert [(row["id"], row["name"]) for row in writing.rows()] == [(1, None), (2**40, "n"), (2, None)]
