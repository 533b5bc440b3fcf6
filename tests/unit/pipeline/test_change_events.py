"""Change events as Debezium 2 and 3 wrote them, and as ``capture`` does, decoded; and what is refused."""

from __future__ import annotations

import json
from base64 import b64encode

import msgspec
import pytest

from nilometer.pipeline.capture.capture import truncate_event
from nilometer.pipeline.changes.change_events import (
    MESSAGE,
    SNAPSHOT_SEQ,
    TOMBSTONE,
    LeftOut,
    canonical,
    decode_change,
    parse_schema,
)
from nilometer.pipeline.tables.values import RejectedValue
from support.pipeline.debezium_events import decoded, events, names, rows_of

NOW_US = 1_714_564_800_000_000
OWN = {"op": "u", "table": "public.a", "key": {"id": 7}, "after": {"id": 7}, "lsn": 5, "seq": 0}
SOURCE = {
    "connector": "postgresql",
    "name": "shop",
    "schema": "public",
    "table": "a",
    "lsn": 5,
    "ts_ms": 1_000,
}
DEBEZIUM = {"op": "u", "before": None, "after": {"id": 7}, "source": SOURCE}
LARGE = {"body": "x" * 3000, "list": list(range(1, 1001)), "raw": b64encode(b"\x00\xff" * 1500).decode()}


KEY = {"id": 7}


def decode(event, key=KEY, headers=(), at_us=NOW_US):
    def encoded(one):
        return one if one is None or isinstance(one, bytes) else json.dumps(one).encode()

    return decode_change(encoded(key), encoded(event), headers, at_us)


def rejection(event, key=KEY):
    with pytest.raises(RejectedValue) as refused:
        decode(event, key)
    return str(refused.value)


# --- recorded events


@pytest.mark.parametrize("name", names())
def test_every_recorded_event_is_a_change_or_left_out_with_its_reason(name):
    given = events(name)
    changes, others = decoded(given)
    assert len(changes) + sum(others.values()) == len(given)
    keyless = [one for one in others if "no key" in one]
    assert set(others) <= {TOMBSTONE, MESSAGE, "a change of the database's schema, no row's", *keyless}
    assert bool(keyless) == name.startswith("pg")
    assert {one.op for one in changes} == {"r", "c", "u", "d", "t"}
    within = "public" if name.startswith("pg") else "shop"
    assert {one.table for one in changes} == {f"{name}.{within}.types", f"{name}.{within}.docs"}


@pytest.mark.parametrize("name", names())
def test_positions_of_recorded_events_increase_for_each_row(name):
    last = {}
    for one in decoded(events(name))[0]:
        where = (one.lsn, one.seq)
        assert where > last.get((one.table, one.key), (0, SNAPSHOT_SEQ - 1))
        last[one.table, one.key] = where


@pytest.mark.parametrize("name", names())
def test_a_row_of_a_recorded_table_is_there_after_key_changes_a_truncate_and_changes_of_its_columns(name):
    changes, _ = decoded(events(name, ".docs"))
    docs = rows_of(changes)
    assert list(docs) == ['{"id":3}']
    [row] = docs.values()
    extra = 2.25 if "double" in name else "iso=" if name.endswith("plain-precise") else "2.250"
    if "plain-precise" in name:
        extra = row["extra"]  # bytes, of which nothing says that they are a decimal
        assert isinstance(extra, str)
    expected = {"id": 3, "n": 5, "extra": extra}
    if name.startswith("pg"):
        expected |= {"body": "again", "list": None, "raw": None}
    assert row == expected


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("pg")])
def test_large_values_that_an_update_did_not_change_are_those_of_the_version_before(name):
    changes, _ = decoded(events(name, ".docs"))
    before_truncate = changes[: [one.op for one in changes].index("t")]
    updated = [one for one in before_truncate if one.op in "uc" and one.missing]
    assert set(updated[0].missing) == {"body", "list", "raw"}
    docs = rows_of(before_truncate)
    assert {key: docs['{"id":10}'][key] for key in LARGE} == LARGE  # under another key, too
    assert docs['{"id":2}']["body"] == "y" * 3000 and docs['{"id":2}']["n"] == 2


def test_types_of_postgresql_with_their_schemas():
    row = rows_of(decoded(events("pg37-envelope-precise", ".types"))[0])['{"id":1,"part":"a"}']
    expected = {
        "a_big": 9_007_199_254_740_993,
        "price": "12345678901234567.90",
        "free": "100000000000000000000",
        "a_real": "Infinity",
        "a_double": "NaN",
        "a_date": "infinity",
        "tstz": "infinity",
        "a_time": "12:34:56.789012",
        "ts3": "2024-05-01T12:00:00.123000",
        "ts6": "2024-05-01T12:00:00.123456",
        "cash": "12.34",
        "numerics": ["1.10", "2.20"],
        "dates": ["2024-02-29"],
        "a_char": "ab   ",
        "a_bytes": "AP8Q",
        "a_jsonb": '{"a": 1.10, "b": null}',
        "Odd Näme": "odd",
    }
    assert {name: row[name] for name in expected} == expected
    moved = rows_of(decoded(events("pg37-envelope-precise", ".types"))[0])['{"id":3,"part":"c"}']
    assert (moved["a_date"], moved["ts6"]) == ("-0043-03-15", "-infinity")


def test_types_of_mariadb_with_their_schemas():
    row = rows_of(decoded(events("mariadb35-envelope-precise", ".types"))[0])['{"id":1,"part":"a"}']
    expected = {
        "price": "12345678901234567.90",
        "free": "1.1000000000",
        "a_date": "2024-02-29",
        "a_time": "-12:34:56",
        "a_time6": "12:34:56.789012",
        "dt": "2024-05-01T12:00:00",
        "dt6": "2024-05-01T12:00:00.123456",
        "ts6": "2024-05-01T12:00:00.123456Z",
        "an_enum": "ok",
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["BIGINT UNSIGNED ZEROFILL", "INT8 UNSIGNED"])
def test_an_unsigned_integer_of_mysql_is_a_number_with_all_its_digits(name: str):
    parameters = {"scale": "0", "__debezium.source.column.type": name}
    kind = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": parameters}
    row = {"type": "struct", "fields": [{**kind, "field": "id"}, {**kind, "field": "n"}]}
    source = {"connector": "mariadb", "db": "shop", "table": "t", "file": "log.1", "pos": 4, "ts_ms": 5}
    largest = b64encode(b"\0" + b"\xff" * 8).decode()
    event = {"op": "c", "source": source, "after": {"id": largest, "n": None}}
    schema = {"type": "struct", "fields": [{**row, "field": "after"}]}
    key = {"schema": row, "payload": {"id": largest}}
    change = decode({"schema": schema, "payload": event}, key)
    assert (change.key, change.row) == ('{"id":18446744073709551615}', '{"id":18446744073709551615,"n":null}')


@pytest.mark.parametrize(
    ("source", "table", "position"),
    [
        (
            {"connector": "postgresql", "name": "shop", "db": "shop", "schema": "public", "lsn": 700},
            "shop.public.t",
            (700, 0),
        ),
        (
            {"connector": "mariadb", "name": "shop", "db": "shop", "file": "log.000003", "pos": 0},
            "shop.shop.t",
            (3 << 32, 0),
        ),
    ],
)
def test_the_truncate_that_a_capture_writes_is_one_of_all_rows(source, table, position):
    change = decode(truncate_event({**source, "table": "t"}, 5), None)
    assert (change.op, change.table, change.key) == ("t", table, None)
    assert ((change.lsn, change.seq), change.at_us) == (position, 5_000)


@pytest.mark.parametrize("name", [name for name in names() if "plain" in name])
def test_a_row_without_a_schema_is_as_debezium_wrote_it_to_the_byte(name):
    for one in events(name, ".types"):
        if one.value is None or json.loads(one.value)["after"] is None:
            continue
        change = decode_change(one.key, one.value, (), 0)
        assert change.row is not None
        assert f'"after":{change.row},'.encode() in one.value


# --- keys, times and positions


def test_equal_keys_are_one_key_and_keys_of_other_types_are_others():
    one = decode(DEBEZIUM, b'{"b": "\\u00e4", "a": 1}').key
    assert one == decode(DEBEZIUM, '{"a":1,"b":"ä"}'.encode()).key == '{"a":1,"b":"ä"}'
    assert decode(DEBEZIUM, {"id": 7}).key != decode(DEBEZIUM, {"id": "7"}).key


def test_the_same_key_in_two_tables_is_of_two_tables():
    other = {**DEBEZIUM, "source": {**SOURCE, "table": "b"}}
    assert (decode(DEBEZIUM).table, decode(other).table) == ("shop.public.a", "shop.public.b")


@pytest.mark.parametrize(
    ("event", "at_us"),
    [
        ({**OWN, "at": "2024-05-01T12:00:00.5Z"}, NOW_US + 500_000),
        (OWN, 77),
        (DEBEZIUM, 1_000_000),
        ({**DEBEZIUM, "source": {**SOURCE, "ts_us": 1_000_001}}, 1_000_001),
        ({**DEBEZIUM, "source": {**SOURCE, "ts_ms": None}}, 77),
    ],
)
def test_a_change_has_a_time_the_events_or_else_the_records(event, at_us):
    assert decode(event, at_us=77).at_us == at_us


def test_a_records_time_outside_of_the_years_is_no_time():
    with pytest.raises(RejectedValue, match="outside of the years 1 to 9999"):
        decode(OWN, at_us=2**62)


def test_digits_are_kept():
    event = b'{"op":"u","table":"t","key":{"id":1},"after":{"a":12345678901234567.89,"b":1.10},"lsn":5}'
    assert decode(event, None).row == '{"a":12345678901234567.89,"b":1.10}'


def test_a_byte_order_mark_is_no_part_of_an_event():
    event = b'{"op":"u","table":"t","key":{"id":1},"after":{"a":1},"lsn":5}'
    assert decode(b"\xef\xbb\xbf" + event, None) == decode(event, None)


def test_a_position_in_a_binary_log_orders_by_file_then_offset_then_row():
    def at(file, pos, row):
        source = {
            "connector": "mysql",
            "name": "s",
            "db": "d",
            "table": "t",
            "file": file,
            "pos": pos,
            "row": row,
        }
        change = decode({**DEBEZIUM, "source": source})
        return change.lsn, change.seq

    ordered = [("b.000999", 9, 0), ("b.000999", 10, 0), ("b.000999", 10, 1), ("b.1000000", 4, 0)]
    assert sorted(ordered, key=lambda one: at(*one)) == ordered


def test_rows_of_a_snapshot_precede_the_changes_at_its_position():
    read = decode({**OWN, "op": "r", "seq": 3})
    assert read.snapshot and (read.lsn, read.seq) < (decode(OWN).lsn, decode(OWN).seq)
    incremental = {**DEBEZIUM, "op": "r", "source": {**SOURCE, "snapshot": "incremental"}}
    assert not decode(incremental).snapshot


# --- what is refused, and what is left out


@pytest.mark.parametrize(
    ("event", "key", "reason"),
    [
        (DEBEZIUM, None, "no key"),
        (DEBEZIUM, b"null", "no key"),
        ({**OWN, "key": None}, None, "no key"),
        ({**DEBEZIUM, "after": None}, {"id": 7}, "op u needs the row in after"),
        ({**DEBEZIUM, "after": 5}, {"id": 7}, "op u needs the row in after"),
        ({**DEBEZIUM, "source": {**SOURCE, "lsn": None}}, {"id": 7}, "no position"),
        ({**DEBEZIUM, "source": {**SOURCE, "lsn": 2**63}}, {"id": 7}, "no number from 0 to 2^63 - 1"),
        ({**OWN, "lsn": -1}, {"id": 7}, "no number from 0 to 2^63 - 1"),
        ({**OWN, "seq": 2**63}, {"id": 7}, "no number from 0 to 2^63 - 1"),
        ({**OWN, "seq": SNAPSHOT_SEQ}, {"id": 7}, "no number from 0 to 2^63 - 1"),
        ({**DEBEZIUM, "source": {**SOURCE, "table": None}}, {"id": 7}, "names no table"),
        ({**DEBEZIUM, "source": {**SOURCE, "connector": "oracle"}}, {"id": 7}, "oracle"),
        ({**OWN, "op": "x"}, {"id": 7}, "no op"),
        ({"id": 7}, {"id": 7}, "no op"),
        ({**OWN, "at": "yesterday"}, {"id": 7}, "time is none"),
        ({**DEBEZIUM, "source": {**SOURCE, "ts_us": 2**62}}, {"id": 7}, "years 1 to 9999"),
        (b"not json", {"id": 7}, "no JSON"),
        (b"\xff", {"id": 7}, "no JSON"),
        (b"[1]", {"id": 7}, "no JSON"),
        (DEBEZIUM, b"Struct{id=7}", "no JSON"),
    ],
)
def test_what_is_no_change_is_refused_with_its_reason(event, key, reason):
    assert reason in rejection(event, key)


@pytest.mark.parametrize(
    "value", [None, b"", b" ", {"op": "m", "source": SOURCE}, {"status": "BEGIN", "id": "5"}]
)
def test_tombstones_and_messages_are_left_out(value):
    with pytest.raises(LeftOut):
        decode(value)


def test_a_placeholder_without_a_version_before_is_never_stored_as_a_value():
    change = decode({**DEBEZIUM, "after": {"id": 7, "a": "__debezium_unavailable_value", "b": "x"}})
    assert change.missing == ["a"] and json.loads(change.row) == {"id": 7, "b": "x"}
    text = decode({**DEBEZIUM, "after": {"id": 7, "a": "about __debezium_unavailable_value"}})
    assert not text.missing


@pytest.mark.parametrize("raw", [b'{"a":1', b"{'a':1}", b""])
def test_a_key_that_is_no_json_is_refused(raw):
    with pytest.raises(msgspec.DecodeError):
        canonical(raw)


def test_a_schema_of_every_event_is_parsed_once():
    before = parse_schema.cache_info().misses
    for one in events("pg37-envelope-precise", ".types") * 3:
        if one.value is not None:
            decode_change(one.key, one.value, (), 0)
    assert parse_schema.cache_info().misses - before <= 4
