"""Values of a table as the world writes them: kept as they are, or rejected with a reason for people."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nilometer.pipeline.tables.iceberg_store import TABLE, open_catalog
from nilometer.pipeline.tables.schemas import infer, parse_json_schema
from nilometer.pipeline.tables.table_writer import TableOptions
from nilometer.pipeline.tables.values import NOTE, RejectedValue, SchemaError, json_decoder
from support.pipeline.table_batches import Writing, numbered, records_of


def decoder(**properties: Any):
    kinds = {
        "float32": {"type": "number", "format": "float"},
        "time": {"type": "string", "format": "date-time"},
    }
    columns = {name: kinds.get(kind, {"type": kind}) for name, kind in properties.items()}
    return json_decoder(parse_json_schema(json.dumps({"type": "object", "properties": columns})))


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("float32", b"16777217", r"rounded as a 32-bit float - at `\$.n`: 16777217"),
        ("float32", b"0.12345678912", "rounded as a 32-bit float"),
        ("number", b"9007199254740993", "rounded as a 64-bit float"),
        ("number", b"12345678901234567.89", r"rounded as a 64-bit float - at `\$.n`: 12345678901234567.89"),
        ("number", b"9007199254740993.0", "rounded as a 64-bit float"),
        ("number", b"1e-400", "rounded as a 64-bit float"),
        ("number", b"9" * 400, "rounded as a 64-bit float"),
        ("time", b'"2024-05-01T10:00:59.9999999Z"', r"more than microseconds - at `\$.n`: 2024-"),
        ("integer", b"22.5", r"`\$.n` is a number with a fraction, and its column takes an integer"),
        ("boolean", b"1", r"`\$.n` is an integer, and its column takes true or false"),
        ("string", rb'"\ud800"', "half of a surrogate pair"),
        ("string", b'"\xff"', "the bytes are no UTF-8"),
    ],
)
def test_what_a_column_would_change_is_rejected_with_its_place(kind, given, reason):
    with pytest.raises(RejectedValue, match=reason):
        decoder(n=kind)(b'{"n": ' + given + b"}")


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [
        ("float32", b"16777216", 16_777_216.0),
        ("float32", b"0.1", 0.1),
        ("float32", b"0.100000001", 0.100000001),
        ("number", b"0.10000000000000001", 0.1),
        ("number", b"1e23", 1e23),
        ("number", b"0.1000000000000000055511151231257827021181583404541015625", 0.1),
        ("string", b'"9007199254740993.25"', "9007199254740993.25"),
    ],
)
def test_numbers_as_programs_write_them_are_kept(kind, given, kept):
    assert decoder(n=kind)(b'{"n": ' + given + b"}") == {"n": kept}


def test_a_time_with_noughts_after_its_microseconds_is_kept():
    found = decoder(n="time")(b'{"n": "2024-05-01T10:00:59.123456000Z"}')
    assert found["n"].isoformat() == "2024-05-01T10:00:59.123456+00:00"


def test_a_byte_order_mark_is_no_part_of_a_value():
    assert decoder(n="integer")(b'\xef\xbb\xbf{"n": 5}') == {"n": 5}
    assert infer([b'\xef\xbb\xbf{"n": 5}']).fields[0].name == "n"
    with pytest.raises(RejectedValue, match="but UTF-16"):
        decoder(n="integer")('{"n": 5}'.encode("utf-16"))


def test_names_keep_their_case_and_what_is_left_out_is_said():
    read = decoder(n="integer", m="integer")
    with pytest.raises(RejectedValue, match=r"differs from `\$.n` only in upper and lower case: N"):
        read(b'{"N": 5}')
    assert not read.notes
    assert read(b'{"n": 5, "note": "x", "list": [1]}') == {"n": 5, "m": None}
    assert read(b'{"n": 6, "note": null, "list": []}') == {"n": 6, "m": None}
    assert read.notes == {NOTE: 1}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([b'{"id": 1}', b'{"ID": 1, "id": 2}'], r"differs from `\$.id` only in upper and lower case: ID"),
        ([b'{"on": true}', b'{"on": 2}'], "is an integer, and its column takes true or false"),
        ([b'{"id": 1}', b'{"id": 2, "_timestamp": 5}'], "_timestamp, which the table has for itself"),
        ([b'{"a.b": 1}', b'{"a": {"b": 2}}'], "a property without a column"),
        ([b'{"id": 1}', b"[1]"], "the value is a list, and no object"),
        ([b'{"id": 1}', b'\xef\xbb\xbf{"id": 2'], "no JSON"),
        ([b'{"id": 1}', rb'{"id": 2, "say \"x\"": 5}'], "a property without a column"),
        ([b'{"id": 1}', rb'{"id": 2, "n": {"a\nb": 5}}'], "a property without a column"),
    ],
)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_of_inferred_columns_a_value_that_does_not_fit_is_rejected_with_the_reason(
    tmp_path, kind, values, reason
):
    """In the first batch and in a later one: no value ends the run."""
    writing = Writing(tmp_path, TableOptions(kind))
    for batch in range(2):
        writing.write(batch, records_of(values, first=10 * batch), tasks=1)
    assert [row["_offset"] for row in writing.rows()] == [0, 10]
    assert [offset for _, offset, _ in writing.rejected] == [1, 11]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(writing.rejected[0][2])
    assert [(one.read, one.rows) for one in writing.counts] == [(2, 1), (2, 1)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_integers_of_the_first_batch_and_then_a_fraction(tmp_path, kind):
    writing = Writing(tmp_path, TableOptions(kind))
    writing.write(0, records_of([b'{"n": 1}']))
    writing.write(1, records_of([b'{"n": 22.5}', b'{"n": 22}'], first=1))
    assert [row["n"] for row in writing.rows()] == [1, 22]
    assert "`$.n` is a number with a fraction, and its column takes an integer" in writing.rejected[0][2]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_list_of_objects_that_is_null_stays_so_when_other_rows_are_replaced(tmp_path, kind):
    writing = Writing(tmp_path, TableOptions(kind, upsert=True))
    values = [b'{"n": [{"a": 1}]}', b'{"n": null}', b'{"n": []}', b'{"n": [{"a": 2}, null]}', b'{"n": null}']
    keys = [b"a", b"b", b"c", b"d", b"e"]
    writing.write(0, records_of(values, keys=keys), tasks=1)
    writing.write(1, records_of([b'{"n": [{"a": 3}]}'], first=5, keys=[b"a"]))
    rows = {row["_key"]: row["n"] for row in writing.rows()}
    assert rows == {b"a": [{"a": 3}], b"b": None, b"c": [], b"d": [{"a": 2}, None], b"e": None}


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_any_other_name_of_a_property_is_one_of_a_column(tmp_path, kind):
    names = (
        "with space",
        "ü",
        "a,b",
        "{}",
        "a=b",
        "z`;",
        "a/b",
        "x" * 300,
        "%20",
        "null",
        "1",
        "element",
        "’",
    )
    row = dict.fromkeys(names, 5)
    writing = Writing(tmp_path, TableOptions(kind))
    writing.write(0, records_of([json.dumps(row).encode()]))
    writing.write(1, records_of([json.dumps({**row, "more, of it": 6}).encode()], first=1))
    assert not writing.rejected
    found = [{name: one for name, one in row.items() if name[0] != "_"} for row in writing.rows()]
    assert found == [{**row, "more, of it": None}, {**row, "more, of it": 6}]


def test_a_schema_whose_paths_are_equal_is_refused():
    inner = {"type": "object", "properties": {"b": {"type": "integer"}}}
    schema = {"type": "object", "properties": {"a.b": {"type": "integer"}, "a": inner}}
    with pytest.raises(SchemaError, match=r"a\.b names two columns"):
        parse_json_schema(json.dumps(schema))


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_batches_without_anything_to_infer_are_rejected_and_end_no_run(tmp_path, kind):
    writing = Writing(tmp_path, TableOptions(kind))
    assert writing.write(0, records_of([b"no json", b"[]", b"{}", b'{"x": null}']))
    assert writing.write(1, [])
    assert writing.write(2, records_of(numbered(2), first=4))
    assert not writing.write(2, records_of(numbered(2), first=4))
    assert [row["id"] for row in writing.rows()] == [0, 1]
    assert [offset for _, offset, _ in sorted(writing.rejected)] == [0, 1, 2, 3]
    assert all("no column: no record" in reason for _, _, reason in writing.rejected)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_record_with_an_impossible_time_stamp_is_rejected(tmp_path, kind):
    records = records_of(numbered(2))
    writing = Writing(tmp_path, TableOptions(kind))
    far = writing_time(records[1], 2**62)
    writing.write(0, [records[0], far], tasks=1)
    assert [row["id"] for row in writing.rows()] == [0]
    assert "time stamp is outside of the years" in writing.rejected[0][2]


def writing_time(record: dict[str, Any], timestamp_us: int) -> dict[str, Any]:
    return {**record, "timestamp": timestamp_us}


def test_each_snapshot_of_an_upserted_iceberg_table_has_all_rows(tmp_path):
    """A reader of any snapshot sees the old row of a key or the new one, and never none."""
    writing = Writing(tmp_path, TableOptions("iceberg", upsert=True))
    keys = [b"a", b"b", b"c"]
    for batch in range(4):
        values: list[bytes | None] = [b'{"n": %d}' % (10 * batch + one) for one in range(3)]
        writing.write(batch, records_of(values, first=3 * batch, keys=keys))
    writing.write(4, records_of([None], first=12, keys=[b"b"]))
    table = open_catalog(tmp_path / "table").load_table(TABLE)
    seen = []
    for snapshot in table.metadata.snapshots:
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        seen.append(sorted((row["_key"], row["n"]) for row in rows))
    wanted = [[(key, 10 * batch + one) for one, key in enumerate(keys)] for batch in range(4)]
    assert seen == [*wanted, [(b"a", 30), (b"c", 32)]]
