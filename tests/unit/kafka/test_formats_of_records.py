"""The formats of keys and values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from nilometer.kafka.formats import JSON, Format, FormatLike, format_of, from_bytes, nullable, to_bytes


class Order(msgspec.Struct):
    id: int
    note: str = ""


@dataclass
class Point:
    x: float
    y: float


PAIR = (json.dumps, json.loads)


@pytest.mark.parametrize(
    ("form", "data", "written"),
    [
        (JSON, {"a": [1, None]}, b'{"a":[1,null]}'),
        (JSON, Point(1, 2), b'{"x":1,"y":2}'),
        (str, "grün", "grün".encode()),
        (bytes, b"\xff", b"\xff"),
        (int, 7, b"7"),
        (list[int], [1, 2], b"[1,2]"),
        (Order, Order(7), b'{"id":7,"note":""}'),
        (Point, Point(1, 2), b'{"x":1,"y":2}'),
        (PAIR, {"a": 1}, b'{"a": 1}'),
        (Format(str, float), 1.5, b"1.5"),
    ],
)
def test_what_is_written_is_read(form: FormatLike[Any], data: object, written: bytes):
    found = format_of(form)
    assert to_bytes(data, "t", "value", found) == written
    read = from_bytes(written, found)
    assert read == (data if form is not JSON else json.loads(written))


@pytest.mark.parametrize("form", [JSON, str, Order, PAIR])
def test_null_is_none(form: FormatLike[Any]):
    assert to_bytes(None, "t", "value", format_of(form)) is None
    assert from_bytes(None, nullable(form)) is None
    if form is JSON:
        assert from_bytes(None, JSON) is None
    else:
        with pytest.raises(ValueError, match="it is null"):
            from_bytes(None, format_of(form))


@pytest.mark.parametrize(
    ("form", "data", "said"),
    [
        (str, 7, "it is of type int, not str"),
        (bytes, "text", "it is of type str, not bytes"),
        (Order, {"id": 1}, "it is of type dict, not Order"),
        (JSON, object(), "object"),
    ],
)
def test_what_has_no_such_form_is_refused(form: FormatLike[Any], data: object, said: str):
    with pytest.raises(TypeError, match=rf"^the value of a record for orders cannot be encoded: .*{said}"):
        to_bytes(data, "orders", "value", format_of(form))


@pytest.mark.parametrize(
    ("form", "data"), [(str, b"\xff"), (JSON, b"{"), (Order, b'{"id":"x"}'), (int, b"1.5"), (PAIR, b"")]
)
def test_bytes_of_another_format_are_refused(form: FormatLike[Any], data: bytes):
    with pytest.raises(ValueError):
        from_bytes(data, format_of(form))


def test_what_is_no_format_is_refused():
    with pytest.raises(TypeError, match="'json' is no format: give JSON, a type"):
        format_of("json")  # type: ignore[arg-type]
