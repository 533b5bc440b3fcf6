"""What a line of `nilometer produce` means: plain lines and JSON lines."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.cli.produce import BadInput, InputRecord, PlainLines, json_record
from nilometer.cli.record_format import json_lines
from nilometer.client.consumer.fetch_exchange import ConsumerRecord

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OPTIONAL_BYTES = st.none() | st.binary(max_size=20)


def test_plain_lines() -> None:
    assert PlainLines().record(b"a:b") == InputRecord(None, b"a:b")
    keyed = PlainLines(separator=b":", null_marker=b"-")
    assert keyed.record(b"a:b:c") == InputRecord(b"a", b"b:c")
    assert keyed.record(b"-:-") == InputRecord(None, None)
    assert keyed.record(b":") == InputRecord(b"", b"")
    assert PlainLines(key=b"k").record(b"") == InputRecord(b"k", b"")
    with pytest.raises(BadInput, match="no key: ':' is not in it"):
        keyed.record(b"abc")


@given(
    OPTIONAL_BYTES,
    OPTIONAL_BYTES,
    st.lists(st.tuples(st.text(max_size=5), OPTIONAL_BYTES), max_size=3),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**63 - 1),
)
def test_what_consume_prints_is_the_same_record(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    partition: int,
    timestamp: int,
) -> None:
    printed = json_lines(ConsumerRecord("t", partition, 9, timestamp, 0, key, value, tuple(headers), 0))
    expected = InputRecord(key, value, tuple(headers), partition, None if timestamp < 0 else timestamp)
    assert json_record(printed) == expected


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"value": ' + b"9" * 5000 + b"}", "it is not JSON"),
        (b'{"value": NaN}', "NaN is not a JSON value"),
        (b"[1]", "it is not a JSON object"),
        (b"{}", 'it has no "value"'),
        (b'{"value": 1, "value": 2}', 'it has "value" twice'),
        (b'{"value": 1, "headers": {"a": 1, "a": 2}}', '"headers" has "a" twice'),
        (b'{"value": "\\ud800"}', "surrogate"),
        (b'{"value": 1, "value_base64": "eA=="}', "both"),
        (b'{"value_base64": "%"}', "not base64"),
        (b'{"value_base64": 7}', "not base64"),
        (b'{"value": 1, "Key": 2}', "'Key' is none of the fields"),
        (b'{"value": 1, "partition": -1}', '"partition" is not a number from 0 to 2147483647'),
        (b'{"value": 1, "partition": true}', '"partition" is not a number'),
        (b'{"value": 1, "timestamp": 9223372036854775808}', '"timestamp" is not a number'),
        (b'{"value": 1, "headers": "x"}', "neither an object nor a list"),
        (b'{"value": 1, "headers": [{"value": "x"}]}', 'an element of "headers" is not'),
    ],
)
def test_lines_that_are_no_records(line: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        json_record(line)


def test_values_that_are_no_strings_are_kept_as_they_are_written() -> None:
    value = '{"a": [1.10, 2E5 , "\\u00e9é", -0],"a":1e400}'
    line = f' {{ "key" : 1.10, "value":{value} , "headers": {{"h":100000000000000000000.0, "i" :true }} }} '
    record = json_record(line.encode())
    assert record == InputRecord(b"1.10", value.encode(), (("h", b"100000000000000000000.0"), ("i", b"true")))
    listed = json_record(
        b'{"headers": [{"name": "x", "value": "1.10"}, {"value": 1.10,"name":"x"}], "value": []}'
    )
    assert listed == InputRecord(None, b"[]", (("x", b"1.10"), ("x", b"1.10")))


@given(JSON, JSON, st.sampled_from([None, 1, 3]), st.sampled_from([(",", ":"), (" , ", " : ")]))
def test_every_json_value_is_kept(
    key: object, value: object, indent: int | None, separators: tuple[str, str]
) -> None:
    document = {"headers": {"h": value}, "key": key, "value": value}
    record = json_record(json.dumps(document, indent=indent, separators=separators).encode())
    for kept, meant in ((record.key, key), (record.value, value), (record.headers[0][1], value)):
        assert (kept is None) == (meant is None)
        if kept is not None:
            assert (kept.decode() if isinstance(meant, str) else json.loads(kept)) == meant
