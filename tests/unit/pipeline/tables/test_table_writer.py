"""Batches into tables of each format: once after every kill, with columns that change, and with upserts."""

from __future__ import annotations

import json
from datetime import date

import pytest

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.table_writer import TABLE, TableOptions
from nilometer.pipeline.tables.values import SchemaError
from support.pipeline.table_batches import Killed, Writing, numbered, records_of

FORMATS = ("delta", "iceberg", "parquet")
OPEN = ("delta", "iceberg")


def schema_of(required=(), **properties):
    said = {"type": "object", "properties": properties, "required": list(required)}
    return json.dumps(said)


INT32 = {"type": "integer", "format": "int32"}
FLOAT = {"type": "number", "format": "float"}
TEXT = {"type": "string"}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("step", ["files", "letters", "commit"])
def test_a_batch_is_in_the_table_once_whenever_the_process_is_killed(tmp_path, kind, step):
    options = TableOptions(kind)
    values = [*numbered(5), b"no JSON"]
    assert Writing(tmp_path, options).write(0, records_of(values))
    second = records_of([*numbered(4, start=10), b'{"id": "x"}'], first=6)
    with pytest.raises(Killed):
        Writing(tmp_path, options, killed_after=step).write(1, second)
    again = Writing(tmp_path, options)
    assert again.write(1, second) == (step != "commit")
    assert not Writing(tmp_path, options).write(1, second)
    assert [(row["_offset"], row["id"]) for row in again.rows()] == [
        *((number, number) for number in range(5)),
        *((6 + number, 10 + number) for number in range(4)),
    ]
    staged = [path for path in (tmp_path / TABLE).rglob("*.parquet") if "metadata" not in path.parts]
    assert len(staged) == 4  # two tasks in two batches: the killed attempt has left none


def test_dead_letters_have_the_reason_and_are_the_same_in_each_attempt(tmp_path):
    strict = schema_of(["id"], id={"type": "integer"}, at={"type": "string", "format": "date-time"})
    values = [
        b'{"id": 1, "at": "2024-05-01T12:00:00Z", "more": 1}',
        b'{"id": 1.5}',
        b'{"at": null}',
        b'{"id": 2, "at": "2024-05-01T12:00:00"}',
        b'{"id": 99999999999999999999}',
        b"\xff\xfe",
        b'{"id": 3, "at": "9999-12-31T23:59:59-10:00"}',
        None,
        b"[" * 100_000,
    ]
    first = Writing(tmp_path, schema=strict, killed_after="letters")
    with pytest.raises(Killed):
        first.write(0, records_of(values), tasks=1)
    # The next run has a schema that takes more; the plan of the batch is that of its first attempt.
    loose = Writing(tmp_path, schema=schema_of(id={"type": "integer"}, at=TEXT))
    assert loose.write(0, records_of(values), tasks=1)
    assert first.rejected == loose.rejected
    assert [offset for _, offset, _ in loose.rejected] == list(range(1, 9))
    reasons = [reason for _, _, reason in loose.rejected]
    assert "Expected `int`, got `float` - at `$.id`" in reasons[0]
    assert "missing required field `id`" in reasons[1]
    assert "timezone" in reasons[2]
    assert "9223372036854775807" in reasons[3]
    assert "no value" in reasons[6]
    assert [row["id"] for row in loose.rows()] == [1]


@pytest.mark.parametrize("kind", FORMATS)
def test_columns_are_added_and_widened_with_the_batch_that_needs_them(tmp_path, kind):
    options = TableOptions(kind)
    before = schema_of(id=INT32, share=FLOAT)
    after = schema_of(id={"type": "integer"}, share={"type": "number"}, name=TEXT)
    assert Writing(tmp_path, options, before).write(0, records_of([b'{"id": 1, "share": 0.5}']))
    new = records_of([b'{"id": 1099511627776, "share": 1e300, "name": "n"}'], first=1)
    with pytest.raises(Killed):
        Writing(tmp_path, options, after, killed_after="letters").write(1, new)
    assert [row["id"] for row in Writing(tmp_path, options, after).rows()] == [1]
    last = Writing(tmp_path, options, after)
    assert last.write(1, new)
    rows = last.rows()
    assert [(row["id"], row["share"], row["name"]) for row in rows] == [(1, 0.5, None), (2**40, 1e300, "n")]
    narrow = Writing(tmp_path, options, before)  # a schema with less: the table's columns stay
    assert narrow.write(2, records_of([b'{"id": 2, "share": 1.5}'], first=2))
    assert [row["name"] for row in narrow.rows()] == [None, "n", None]
    with pytest.raises(SchemaError, match=r"\$\.name is string in the table, and int64 in the schema"):
        Writing(tmp_path, options, schema_of(name={"type": "integer"})).write(3, records_of([b"{}"], first=3))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_schema_that_was_refused_is_not_the_plan_of_the_batch(tmp_path, kind):
    options = TableOptions(kind)
    assert Writing(tmp_path, options, schema_of(id=INT32)).write(0, records_of([b'{"id": 1}']))
    second = records_of([b'{"id": 2, "name": "n"}'], first=1)
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"\$\.id is int32 in the table, and string in the schema"):
            Writing(tmp_path, options, schema_of(id=TEXT)).write(1, second)
    good = Writing(tmp_path, options, schema_of(id=INT32, name=TEXT))
    assert good.write(1, second)
    assert [(row["id"], row["name"]) for row in good.rows()] == [(1, None), (2, "n")]


@pytest.mark.parametrize("kind", FORMATS)
def test_inferred_columns_are_pinned_and_new_fields_added(tmp_path, kind):
    writing = Writing(tmp_path, TableOptions(kind))
    assert writing.write(0, records_of([b'{"id": 1, "in": {"x": 1.5, "l": [1]}}', b'{"id": "text"}']))
    second = [b'{"id": 2, "in": {"x": 2, "y": true, "l": [2, null]}, "z": "new"}', b'{"id": 3.5}']
    assert writing.write(1, records_of(second, first=2))
    rows = writing.rows()
    assert [row["id"] for row in rows] == [1, 2]
    assert [row["in"] for row in rows] == [
        {"x": 1.5, "l": [1], "y": None},
        {"x": 2.0, "l": [2, None], "y": True},
    ]
    assert [row["z"] for row in rows] == [None, "new"]
    assert [offset for _, offset, _ in writing.rejected] == [1, 3]


@pytest.mark.parametrize("kind", OPEN)
def test_upserts_replace_and_delete_rows_by_key_once(tmp_path, kind):
    options = TableOptions(kind, upsert=True)
    schema = schema_of(n={"type": "integer"})
    first = records_of(
        [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', b'{"n": 4}', None, b'{"n": 5}'],
        keys=[b"a", b"b", b"a", b"c", b"c", None],
    )
    writing = Writing(tmp_path, options, schema)
    assert writing.write(0, first)
    assert [(row["_key"], row["n"], row["_offset"]) for row in writing.rows()] == [(b"b", 2, 1), (b"a", 3, 2)]
    assert [offset for _, offset, _ in writing.rejected] == [5]
    second = records_of([None, b'{"n": 7}', None, b'{"n": 8}'], keys=[b"a", b"c", b"none", b"b"], first=6)
    with pytest.raises(Killed):
        Writing(tmp_path, options, schema, killed_after="files").write(1, second)
    assert Writing(tmp_path, options, schema).write(1, second)
    assert not Writing(tmp_path, options, schema).write(1, second)
    assert [(row["_key"], row["n"]) for row in writing.rows()] == [(b"c", 7), (b"b", 8)]
    wider = Writing(tmp_path, options, schema_of(n={"type": "integer"}, name=TEXT))
    assert wider.write(2, records_of([b'{"n": 9, "name": "x"}', None], keys=[b"b", b"c"], first=10))
    assert [(row["_key"], row["n"], row["name"]) for row in wider.rows()] == [(b"b", 9, "x")]
    assert wider.write(3, records_of([None], keys=[b"b"], first=12))
    assert wider.rows() == []


@pytest.mark.parametrize("kind", OPEN)
def test_tables_are_partitioned_by_the_day_of_the_timestamp(tmp_path, kind):
    options = TableOptions(kind, by_day=True)
    # polars does not find the files of a Delta Lake table below a folder with a space in its name.
    output = tmp_path / ("folder" if kind == "delta" else "a folder")
    output.mkdir()
    writing = Writing(output, options)
    days = [record for day in (1, 2) for record in records_of(numbered(2, day), first=day * 2, day=day)]
    assert writing.write(0, days)
    assert writing.write(1, records_of([b'{"id": 3, "name": "x", "new": 1}'], first=6, day=2))
    rows = writing.rows()
    assert [(row["_timestamp"].day, row["id"]) for row in rows] == [(1, 1), (1, 2), (2, 2), (2, 3), (2, 3)]
    if kind == "delta":
        assert [row["_day"] for row in rows] == [date(2024, 5, day) for day in (1, 1, 2, 2, 2)]
        writing.writer.compact()
        assert writing.rows() == rows


def test_upserted_rows_are_in_the_partition_of_their_day(tmp_path):
    options = TableOptions("delta", by_day=True, upsert=True)
    schema = schema_of(n={"type": "integer"})

    def write(batch_id, values, keys, *, day, schema=schema):
        writing = Writing(tmp_path, options, schema)
        assert writing.write(batch_id, records_of(values, keys=keys, first=10 * batch_id, day=day))
        return [(row["_key"], row["n"], row["_day"].day) for row in writing.rows()]

    assert write(0, [b'{"n": 1}', b'{"n": 2}'], [b"a", b"b"], day=1) == [(b"a", 1, 1), (b"b", 2, 1)]
    rows = write(1, [b'{"n": 3}', b'{"n": 4}'], [b"b", b"c"], day=2)  # b moves to another day
    assert rows == [(b"a", 1, 1), (b"b", 3, 2), (b"c", 4, 2)]
    wider = schema_of(n={"type": "integer"}, name=TEXT)  # the whole table is written again
    rows = write(2, [b'{"n": 5}', None], [b"a", b"c"], day=3, schema=wider)
    assert rows == [(b"b", 3, 2), (b"a", 5, 3)]
    assert {path.parent.name for path in (tmp_path / TABLE).glob("_day=*/*.parquet")} >= {
        "_day=2024-05-02",
        "_day=2024-05-03",
    }


@pytest.mark.parametrize("kind", FORMATS)
def test_a_batch_without_rows_is_committed_too(tmp_path, kind):
    writing = Writing(tmp_path, TableOptions(kind), schema_of(id={"type": "integer"}))
    assert writing.write(0, records_of([b"x"]))
    assert not writing.write(0, records_of([b"x"]))
    assert writing.write(1, records_of([b'{"id": 1}'], first=1))
    assert [row["id"] for row in writing.rows()] == [1]
    store = writing.options.store(tmp_path)
    assert [(one.batch_id, one.rows) for one in store.commits()][-1] == (1, 1)
    totals = store.totals()
    assert (totals.rows, totals.files) == (1, 1)
    assert totals.size > 0


@pytest.mark.parametrize("kind", FORMATS)
def test_a_table_of_another_checkpoint_or_format_is_not_continued(tmp_path, kind):
    assert Writing(tmp_path, TableOptions(kind)).write(0, records_of(numbered(1)))
    with pytest.raises(PipelineError, match="another checkpoint"):
        Writing(tmp_path, TableOptions(kind), application="other").write(0, records_of(numbered(1)))
    other = FORMATS[FORMATS.index(kind) - 1]
    with pytest.raises(PipelineError, match=f"is a table of format {kind}"):
        Writing(tmp_path, TableOptions(other))


def test_expired_snapshots_do_not_make_a_batch_new(tmp_path):
    from nilometer.pipeline.tables.iceberg_store import TABLE as NAME
    from nilometer.pipeline.tables.iceberg_store import open_catalog

    writing = Writing(tmp_path, TableOptions("iceberg"))
    assert writing.write(0, records_of(numbered(2)))
    assert writing.write(1, records_of(numbered(2, 2), first=2))
    table = open_catalog(tmp_path / TABLE).load_table(NAME)
    newest = table.current_snapshot().snapshot_id
    old = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert not writing.write(0, records_of(numbered(2)))
    assert len(writing.rows()) == 4
