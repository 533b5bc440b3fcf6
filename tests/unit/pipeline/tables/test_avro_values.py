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
from nilometer.pipeline.tables.avro_values import (
    SCHEMAS_MAX,
    AvroSchemas,
    avro_decoder,
    avro_schemas_of,
    newest_schema,
    parse_avro_schema,
    read_schemas,
    registry_at,
    schema_ids,
)
from nilometer.pipeline.tables.table_writer import TableOptions
from nilometer.pipeline.tables.values import RejectedValue, SchemaError
from support.pipeline.table_batches import Killed, Writing, records_of
from support.stub_registry import StubRegistry

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


def planned_for(values, client):
    """Return the decoder of rows by the newest schema of the topic `t`, as a batch of `values` plans it."""
    row = parse_avro_schema(newest_schema("t", client))
    return avro_decoder(row, read_schemas(schema_ids(values), client))


@pytest.fixture
def registry():
    with StubRegistry() as running:
        yield running


def test_values_are_rows_of_the_newest_schema_and_each_schema_is_read_once(registry):
    old, new = record(FIELDS), record([*FIELDS, {"name": "more", "type": "double"}])
    first, second = registry.add("t-value", old), registry.add("t-value", new)
    client = registry_at(registry.url)
    row = parse_avro_schema(newest_schema("t", client))
    older, newer = encoded(first, old, VALUE), encoded(second, new, {**VALUE, "more": 1.5})
    expected = {**VALUE, "uid": str(VALUE["uid"]), "more": None}
    for _ in range(3):
        decode = avro_decoder(row, read_schemas(schema_ids([older, older, newer]), client))
        assert decode(older) == expected
        assert decode(newer) == {**expected, "more": 1.5}
    assert sorted(registry.requests) == [
        "/schemas/ids/1",
        "/schemas/ids/2",
        "/subjects/t-value/versions/latest",
    ]


def test_what_is_no_value_of_a_known_schema_is_rejected_with_the_reason(registry):
    schema = record(FIELDS[:2])
    number = registry.add("t-value", schema)
    whole = encoded(number, schema, {"id": 1, "name": "n"})
    cases = {
        b"": "5 bytes",
        b'{"id": 1}': "5 bytes",
        struct.pack(">bI", 0, 2**32 - 1): "5 bytes",
        whole[:6]: "no value of schema 1",
        whole + b"x": "bytes are left",
        struct.pack(">bI", 0, 99): "schema 99 of the registry: the registry does not have it",
    }
    decode = planned_for([whole, *cases], registry_at(registry.url))
    for value, reason in cases.items():
        with pytest.raises(RejectedValue, match=reason):
            decode(value)
    assert decode(whole) == {"id": 1, "name": "n"}


WRAPPED = {
    "type": "record",
    "name": "Node",
    "namespace": "shop",
    "fields": [{"name": "next", "type": {"type": "array", "items": ["null", "Node"]}}],
}
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def nested(levels):
    schema = {"type": "array", "items": "int"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "kind", "reason"),
    [
        ('{"type": "object"}', "JSON", "it is of type JSON, and only AVRO is read"),
        ('syntax = "proto3";', "PROTOBUF", "it is of type PROTOBUF"),
        ("{", "AVRO", "cannot be read: JSONDecodeError"),
        ('{"type": "record", "fields": []}', "AVRO", "cannot be read"),
        ('{"type": "elsewhere.Type"}', "AVRO", "cannot be read: UnknownType"),
        (json.dumps(NODE), "AVRO", "cannot be read: type Node is recursive"),
        (json.dumps(WRAPPED), "AVRO", "cannot be read: type shop.Node is recursive"),
        (json.dumps(nested(800)), "AVRO", "more than 300 levels"),
        (json.dumps(record([{"name": "x", "type": {"type": "array", "items": "null"}}])), "AVRO", "no bytes"),
    ],
)
def test_values_of_a_schema_that_cannot_be_read_are_rejected_and_others_are_rows(
    registry, schema, kind, reason
):
    other = registry.add("t-value", schema, kind)
    good = record(FIELDS[:2])
    whole = encoded(registry.add("t-value", good), good, {"id": 1, "name": "n"})
    # A value of the recursive schema that has this many levels would end the process.
    deep = struct.pack(">bI", 0, other) + b"\x02" * 100_000 + b"\x00"
    decode = planned_for([deep, whole], registry_at(registry.url))
    with pytest.raises(RejectedValue, match=f"^schema {other} of the registry: .*{reason}"):
        decode(deep)
    assert decode(whole) == {"id": 1, "name": "n"}


def test_types_that_are_used_twice_are_not_recursive(registry):
    twice = record([{"name": "a", "type": PLACE}, {"name": "b", "type": {"type": "array", "items": "Place"}}])
    whole = encoded(registry.add("t-value", twice), twice, {"a": {"zip": "1"}, "b": [{"zip": "2"}]})
    decode = planned_for([whole], registry_at(registry.url))
    assert decode(whole) == {"a": {"zip": "1"}, "b": [{"zip": "2"}]}


def test_made_up_ids_are_not_all_asked_for(registry):
    schema = record(FIELDS[:1])
    whole = encoded(registry.add("t-value", schema), schema, {"id": 1})
    made_up = [struct.pack(">bI", 0, 1_000 + number) for number in range(2 * SCHEMAS_MAX)]
    ids = schema_ids([None, *made_up, whole, whole])
    assert len(ids) == SCHEMAS_MAX
    assert ids[1] == 2
    decode = avro_decoder(parse_avro_schema(json.dumps(schema)), AvroSchemas({1: json.dumps(schema)}, {}))
    assert decode(whole) == {"id": 1}
    with pytest.raises(RejectedValue, match=r"schema 2999 .* most frequent"):
        decode(made_up[-1])


def test_what_a_batch_was_written_with_is_read_as_it_was_saved():
    schemas = AvroSchemas({1: '"int"', 7: "{"}, {99: "the registry does not have it"})
    assert avro_schemas_of(json.loads(json.dumps(schemas.as_json()))) == schemas


def test_a_registry_that_fails_is_an_error_and_no_rejected_value(registry):
    client = registry_at(registry.url)
    registry.answers_with = 500
    with pytest.raises(PipelineError, match="answers 500"):
        read_schemas(schema_ids([struct.pack(">bI", 0, 1)]), client)
    registry.answers_with = None
    with pytest.raises(PipelineError, match="no subject t-value"):
        newest_schema("t", client)
    registry.add("t-value", "{}", "JSON")
    with pytest.raises(PipelineError, match=r"newest schema of t-value .* of type JSON"):
        newest_schema("t", client)
    with pytest.raises(PipelineError, match="http://"):
        registry_at("file:///etc/passwd")


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ({"type": "map", "values": "int"}, r"\$\.x: type map"),
        (["int", "string"], r"\$\.x: a union"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, r"\$\.x: type bytes \(decimal\)"),
        (["null", "Order"], r"\$\.x: type Order is recursive"),
        ("Nothing", r"\$\.x: type Nothing is not supported"),
        (nested(800), "more than 300 levels"),
        ({"type": "record", "name": "In", "fields": 5}, r"\$\.x: the fields of a record"),
    ],
)
def test_a_type_that_is_no_column_is_named(kind, where):
    with pytest.raises(SchemaError, match=where):
        parse_avro_schema(json.dumps(record([{"name": "x", "type": kind}])))


def test_a_new_schema_adds_and_widens_columns_of_the_table(registry, tmp_path):
    old = record([{"name": "id", "type": "int"}])
    new = record([{"name": "id", "type": "long"}, {"name": "name", "type": "string"}])
    options = TableOptions("iceberg")

    def write(batch_id, values):
        writing = Writing(tmp_path, options, registry=registry.url)
        assert writing.write(batch_id, records_of(values, first=10 * batch_id))
        return writing

    first = registry.add("t-value", old)
    write(0, [encoded(first, old, {"id": 1})])
    second = registry.add("t-value", new)
    writing = write(1, [encoded(second, new, {"id": 2**40, "name": "n"}), encoded(first, old, {"id": 2})])
    assert [(row["id"], row["name"]) for row in writing.rows()] == [(1, None), (2**40, "n"), (2, None)]


def test_a_repeated_batch_rejects_what_its_first_attempt_did_without_the_registry(registry, tmp_path):
    schema = record(FIELDS[:1])
    known = registry.add("t-value", schema)
    values = [encoded(known, schema, {"id": 1}), encoded(known + 1, schema, {"id": 2})]
    first = Writing(tmp_path, registry=registry.url, killed_after="letters")
    with pytest.raises(Killed):
        first.write(0, records_of(values))
    assert registry.add("other-value", schema) == known + 1  # known from now on
    asked = len(registry.requests)
    registry.answers_with = 500
    again = Writing(tmp_path, registry=registry.url)
    assert again.write(0, records_of(values))
    assert not again.write(0, records_of(values))  # the table has the batch
    assert [row["id"] for row in again.rows()] == [1]
    assert len(registry.requests) == asked
    assert [offset for _, offset, _ in first.rejected] == [1]
    registry.answers_with = None
    assert again.write(1, records_of([values[1]], first=2))
    assert [row["id"] for row in again.rows()] == [1, 2]
