"""Logical decoding messages as change events: by bytes as the protocol lays them out."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime

import pytest

from nilometer.pipeline.postgres.pgoutput import BadMessage, Decoder, json_value, records_of

AT = int((datetime(2024, 5, 1, 12, 0, tzinfo=UTC) - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)


def begin(lsn, xid=7):
    return b"B" + struct.pack(">qqi", lsn, AT, xid)


def commit(end):
    return b"C" + struct.pack(">bqqq", 0, end - 8, end, AT)


def relation(*columns, oid=16_384):
    described = b"".join(  # the first column is the key
        bytes([name == columns[0][0]]) + name.encode() + b"\0" + struct.pack(">Ii", kind, -1)
        for name, kind in columns
    )
    return (
        b"R" + struct.pack(">i", oid) + b"public\0accounts\0d" + struct.pack(">h", len(columns)) + described
    )


def row(*values):
    said = struct.pack(">h", len(values))
    for value in values:
        if value is None or value is ...:
            said += b"n" if value is None else b"u"
        else:
            said += b"t" + struct.pack(">i", len(value.encode())) + value.encode()
    return said


def on(kind, rest, oid=16_384):
    return kind + struct.pack(">i", oid) + rest


TABLE = relation(("id", 23), ("owner", 25), ("balance", 1700))


def events(*messages):
    decoder = Decoder()
    changes = [change for message in messages for change in decoder.decode(message)]
    records = [record for change in changes for record in records_of(change, ["id"])]
    return [(key and json.loads(key), json.loads(value)) for key, value in records], decoder


def test_a_transactions_changes_are_numbered_by_its_commit():
    found, decoder = events(
        begin(1_000),
        TABLE,
        on(b"I", b"N" + row("1", "Grüße", "12.50")),
        on(b"U", b"N" + row("1", None, "99999999999999999999.01")),
        on(b"D", b"K" + row("1", None, None)),
        commit(1_048),
    )
    assert [(key, one["op"], one["lsn"], one["seq"]) for key, one in found] == [
        ({"id": 1}, "c", 1_000, 0),
        ({"id": 1}, "u", 1_000, 2),
        ({"id": 1}, "d", 1_000, 4),
    ]
    assert found[0][1]["after"] == {"id": 1, "owner": "Grüße", "balance": 12.5}
    assert found[0][1]["at"] == "2024-05-01T12:00:00.000000Z"
    assert found[2][1]["after"] is None
    assert decoder.committed_until == 1_048


def test_a_change_of_the_key_ends_one_row_and_begins_another():
    found, _ = events(
        begin(5), TABLE, on(b"U", b"K" + row("1", None, None) + b"N" + row("2", "x", "0")), commit(9)
    )
    assert [(key, one["op"], one["seq"]) for key, one in found] == [({"id": 1}, "d", 0), ({"id": 2}, "c", 0)]
    assert found[1][1]["old_key"] == {"id": 1}


def test_an_old_row_with_the_same_key_is_an_update():
    found, _ = events(
        begin(5), TABLE, on(b"U", b"O" + row("1", "w", "0") + b"N" + row("1", "x", "0")), commit(9)
    )
    assert [(key, one["op"]) for key, one in found] == [({"id": 1}, "u")]


def test_a_large_value_that_the_log_omits_is_that_of_the_old_row_or_a_placeholder():
    found, _ = events(
        begin(5), TABLE, on(b"U", b"O" + row("1", "w", "0") + b"N" + row("1", ..., "1")),
        on(b"U", b"N" + row("1", ..., "2")), commit(9),
    )  # fmt: skip
    assert [one["after"]["owner"] for _, one in found] == ["w", "__debezium_unavailable_value"]


def test_the_key_is_that_of_the_tables_description_at_the_time_of_the_change():
    named = relation(("number", 23), ("owner", 25))
    found, _ = events(begin(5), named, on(b"I", b"N" + row("1", "x")), commit(9))
    assert found[0][0] == {"number": 1}
    described = b"R" + struct.pack(">i", 16_384) + b"public\0accounts\0f" + struct.pack(">h", 1)
    full = described + b"\1other\0" + struct.pack(">Ii", 23, -1)
    with pytest.raises(BadMessage, match="no column id"):
        events(begin(5), full, on(b"I", b"N" + row("1")), commit(9))


def test_an_emptied_table_is_one_event_without_a_key():
    found, _ = events(begin(5), TABLE, b"T" + struct.pack(">ibi", 1, 0, 16_384), commit(9))
    assert [(key, one["op"], one["key"]) for key, one in found] == [(None, "t", None)]


@pytest.mark.parametrize(
    ("text", "oid", "value"),
    [
        (None, 23, None),
        ("t", 16, True),
        ("f", 16, False),
        ("-7", 20, -7),
        ("NaN", 701, "NaN"),
        ("Infinity", 1700, "Infinity"),
        ("2024-05-01 12:00:00+00", 1184, "2024-05-01 12:00:00+00"),
    ],
)
def test_values_become_what_json_has_for_them(text, oid, value):
    assert json_value(text, oid) == value


def test_json_columns_are_json():
    found, _ = events(
        begin(5), relation(("id", 23), ("j", 3802)), on(b"I", b"N" + row("1", '{"a": [1]}')), commit(9)
    )
    assert found[0][1]["after"]["j"] == {"a": [1]}


@pytest.mark.parametrize(
    "messages",
    [
        [b"X"],
        [begin(5)[:-1]],
        [begin(5), on(b"I", b"N" + row("1"))],
        [TABLE, on(b"I", b"N" + row("1", "x", "0"))],
        [begin(5), TABLE, on(b"U", b"Q")],
        [begin(5), TABLE, on(b"I", b"N" + row("1", "x", "0")[:-1])],
    ],
)
def test_messages_that_are_none_are_refused(messages):
    with pytest.raises(BadMessage):
        events(*messages)
