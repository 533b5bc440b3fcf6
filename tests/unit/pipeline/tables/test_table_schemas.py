"""Schemas of tables: JSON Schema both ways, inference from values, and what a table can follow."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nilometer.pipeline.tables.schemas import (
    closed,
    decide_change,
    extended,
    infer,
    json_schema_of,
    parse_json_schema,
)
from nilometer.pipeline.tables.table_store import arrow_schema, row_type
from nilometer.pipeline.tables.values import (
    RESERVED,
    Field,
    RejectedValue,
    SchemaError,
    ValueType,
    json_decoder,
    relaxed,
    struct,
)

SCALARS = ("boolean", "int32", "int64", "float32", "float64", "string", "binary", "date", "timestamp")
NAMES = st.text(
    st.characters(categories=("L", "N"), include_characters=" ._-"), min_size=1, max_size=8
).filter(lambda name: name.lower() not in RESERVED)


def structs(inner):
    fields = st.lists(
        st.builds(Field, NAMES, inner, st.booleans()),
        min_size=1,
        max_size=4,
        unique_by=lambda f: f.name.lower(),
    )
    others = st.sampled_from(("ignored", "empty", "refused"))
    return st.builds(lambda fields, others: struct(*fields, others=others), fields, others)


TYPES = st.recursive(
    st.sampled_from(SCALARS).map(ValueType),
    lambda inner: st.one_of(inner.map(lambda one: ValueType("list", item=one)), structs(inner)),
    max_leaves=8,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(structs(TYPES))
def test_a_schema_is_read_as_it_was_written_and_a_table_has_its_columns(row):
    assert parse_json_schema(json.dumps(json_schema_of(row))) == row
    assert row_type(arrow_schema(row)) == relaxed(row)
    assert not decide_change(relaxed(row), row)


@given(st.dictionaries(NAMES, JSON, min_size=1, max_size=4))
@example({"id": 1, "coupon": None})
def test_a_single_value_fits_the_columns_inferred_from_it(value):
    text = json.dumps(value).encode()
    row = infer([text])
    if not row.fields:
        return
    try:
        found = json_decoder(row)(text)
    except RejectedValue:
        # Lists with items of several types, and names that differ in case only, fit no columns.
        assert any(isinstance(one, list | dict) for one in value.values()) or len(
            {name.lower() for name in value}
        ) < len(value)
        return
    for field in row.fields:
        if field.type.kind in SCALARS:
            assert found[field.name] == value[field.name]


EMPTY = (None, [], {}, [None], [[], {}], {"a": None, "b": {"c": [None]}})
ORDER = struct(Field("id", ValueType("int64")), Field("to", struct(Field("zip", ValueType("string")))))


def inferred(*values):
    """Return the decoder for the rows in the values."""
    return json_decoder(infer([json.dumps(value).encode() for value in values]))


@pytest.mark.parametrize("empty", EMPTY)
def test_a_field_that_holds_nothing_needs_no_column(empty):
    for value, row in (
        ({"id": 1, "coupon": empty}, {"id": 1}),
        ({"id": 1, "ID": empty}, {"id": 1}),
        ({"to": {"zip": "1", "co": empty}}, {"to": {"zip": "1"}}),
        ({"lines": [{"n": 1}, {"n": 2, "co": empty}]}, {"lines": [{"n": 1}, {"n": 2}]}),
    ):
        assert inferred(value)(json.dumps(value).encode()) == row


@pytest.mark.parametrize("held", [0, "", False, [0], {"a": ""}, [[], {"a": [False]}], 2**70])
def test_a_field_that_holds_something_is_not_left_out(held):
    decode = inferred({"id": 1, "to": {"zip": "1"}})
    assert decode(b'{"id": 2}') == {"id": 2, "to": None}
    for value in ({"id": 1, "coupon": held}, {"to": {"zip": "1", "co": held}}):
        with pytest.raises(RejectedValue, match="unknown field `co"):
            decode(json.dumps(value).encode())


def test_a_table_without_a_schema_takes_fields_that_hold_nothing_and_a_closed_schema_does_not():
    value = b'{"id": 1, "to": {"zip": "1", "co": []}, "coupon": null}'
    assert json_decoder(closed(ORDER))(value) == {"id": 1, "to": {"zip": "1"}}
    assert json_decoder(extended(ORDER, infer([value])))(value) == {"id": 1, "to": {"zip": "1"}}
    with pytest.raises(RejectedValue, match="unknown field `coupon`"):
        json_decoder(struct(*ORDER.fields, others="refused"))(value)
    inner = struct(*ORDER.field("to").type.fields, others="refused")
    with pytest.raises(RejectedValue, match=r"unknown field `co` - at `\$\.to`"):
        json_decoder(struct(Field("id", ValueType("int64")), Field("to", inner), others="empty"))(value)


def test_a_wrong_type_is_the_reason_also_beside_a_field_that_holds_nothing():
    decode = inferred({"id": 1, "n": 1.5})
    with pytest.raises(RejectedValue, match=r"Expected `int \| null`, got `str`"):
        decode(b'{"coupon": null, "id": "one"}')
    with pytest.raises(RejectedValue, match="would be rounded"):
        decode(f'{{"coupon": null, "n": {2**60 + 1}}}'.encode())


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ("{", "no JSON"),
        ('{"type": "array", "items": {"type": "string"}}', "an object with at least one property"),
        ('{"type": "object"}', r"\$: an object needs properties"),
        ('{"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}', r"\$\.a: pattern"),
        ('{"type": "object", "properties": {"a": {"anyOf": []}}}', r"\$\.a: anyOf"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', r"\$\.a: one type"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', r"\$\.a: an array needs items"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}', r"\$\.a: there is no #/\$defs/b"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', r"\$\.a: \$ref # is not in this file"),
        ('{"type": "object", "properties": {"_offset": {"type": "string"}}}', "_offset: this name is taken"),
        (r'{"type": "object", "properties": {"a\"b": {"type": "string"}}}', "is no name of a column"),
        (
            '{"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}}',
            "only in upper and lower case",
        ),
        (
            '{"$ref": "#/$defs/t", '
            '"$defs": {"t": {"type": "object", "properties": {"t": {"$ref": "#/$defs/t"}}}}}',
            "cannot be recursive",
        ),
        ('{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["b"]}', "required b"),
    ],
)
def test_a_schema_that_no_table_can_have_is_refused_with_the_place(schema, where):
    with pytest.raises(SchemaError, match=where):
        parse_json_schema(schema)


def test_a_schema_refers_to_its_definitions():
    text = (
        '{"$defs": {"place": {"type": "object", "properties": {"zip": {"type": "string"}}}}, '
        '"type": "object", "properties": {"to": {"$ref": "#/$defs/place"}, '
        '"at": {"type": ["null", "string"], "format": "date"}}, '
        '"required": ["to", "at"]}'
    )
    place = struct(Field("zip", ValueType("string")))
    assert parse_json_schema(text) == struct(
        Field("to", place, required=True), Field("at", ValueType("date"))
    )


def test_numbers_are_joined_and_what_has_no_type_is_no_column():
    values = [
        b'{"n": 1, "e": [], "x": null, "_key": 1}',
        b'{"n": 1.5, "l": [{"a": 1}, {"b": true}]}',
        b"[]",
        None,
    ]
    item = struct(Field("a", ValueType("int64")), Field("b", ValueType("boolean")), others="empty")
    assert infer(values) == struct(
        Field("n", ValueType("float64")), Field("l", ValueType("list", item=item)), others="empty"
    )


@pytest.mark.parametrize(
    ("numbers", "kind", "refused"),
    [
        (("1", "1.5", f"{2**53}"), "float64", ()),
        (("1", f"{2**53 + 1}"), "int64", ()),
        ((f"{2**53 + 1}", "1", "1.5"), "int64", ("1.5",)),
        (("1.5", "7", f"{2**53 + 1}"), "float64", (f"{2**53 + 1}",)),
        ((f"-{2**53 + 1}", "1.5"), "int64", ("1.5",)),
        (("0.5", "100000000000000000000"), "float64", ()),
        (("1e300", f"{2**64 + 1}"), "float64", (f"{2**64 + 1}",)),
    ],
)
def test_no_integer_is_rounded_because_there_are_floats_too(numbers, kind, refused):
    values = [f'{{"n": {one}, "l": [{{"n": {one}}}]}}'.encode() for one in numbers]
    row = infer(values)
    assert row.field("n").type == ValueType(kind)
    decode = json_decoder(row)
    for number, value in zip(numbers, values, strict=True):
        if number in refused:
            with pytest.raises(RejectedValue, match=r"rounded|Expected `int \| null`, got `float`"):
                decode(value)
        else:
            found = decode(value)
            assert found["n"] == found["l"][0]["n"] == json.loads(number)
            assert isinstance(found["n"], float) == (kind == "float64")


def test_a_number_that_would_be_rounded_is_rejected_with_its_place():
    number = '{"type": "object", "properties": {"n": {"type": "number"}}}'
    row = f'{{"type": "object", "properties": {{"a": {{"type": "array", "items": {number}}}}}}}'
    decode = json_decoder(parse_json_schema(row))
    assert decode(b'{"a": [{"n": 3}, {"n": null}, null]}') == {"a": [{"n": 3.0}, {"n": None}, None]}
    assert decode(b"{}") == {"a": None}
    for text in (f"{2**60 + 1}", "1" + 400 * "0"):
        with pytest.raises(RejectedValue, match=r"would be rounded .* `\$\.a\[\.\.\.\]\.n`|too large"):
            decode(f'{{"a": [{{"n": {text}}}]}}'.encode())


def test_a_change_names_what_is_added_and_widened():
    old = struct(Field("a", ValueType("int32")), Field("s", struct(Field("x", ValueType("float32")))))
    new = struct(
        Field("s", struct(Field("y", ValueType("string")), Field("x", ValueType("float64")))),
        Field("b", ValueType("date")),
    )
    change = decide_change(old, new)
    assert (change.added, change.widened) == (("$.s.y", "$.b"), ("$.s.x: float32 to float64",))
    with pytest.raises(SchemaError, match=r"\$\.a is int32 in the table, and string in the schema"):
        decide_change(old, struct(Field("a", ValueType("string"))))
    with pytest.raises(SchemaError, match="only in upper and lower case"):
        decide_change(old, struct(Field("A", ValueType("int32"))))
