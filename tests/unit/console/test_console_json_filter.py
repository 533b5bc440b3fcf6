"""Conditions on JSON values: what they match, and which are refused."""

from __future__ import annotations

import random
import string

import pytest

from nilometer.console.views.records import BadFilter, json_filter

VALUE = b"""{"user": {"id": 7, "name": "Ada", "on": true, "none": null}, "tags": ["new", "late", 3],
    "a name": {"x-y": 1.5}, "rows": [{"n": 1}, {"n": 20}], "text": "was late again", "7": "seven"}"""


@pytest.mark.parametrize(
    "condition",
    [
        "$",
        "$.user.id",
        "user.id",
        "$.user.none",
        "$.user.id == 7",
        "$.user.id=7.0",
        "$.user.id != 8",
        "$.user.id != seven",
        "$.user.id >= 7",
        "$.user.id<8",
        "$.user.name == Ada",
        '$.user.name == "Ada"',
        "$.user.name = 'Ada'",
        "$.user.name < B",
        "$.user.on == true",
        "$.user.none == null",
        "$.tags[0] == new",
        "$.tags[-1] == 3",
        "$.tags[*] == late",
        "$.*.id == 7",
        "$.rows[*].n > 10",
        "$['a name'].x-y == 1.5",
        '$["a name"]',
        "$.text ~ late ag",
        "$.7 == seven",
        '$.rows[0] == {"n": 1}',
    ],
)
def test_it_matches(condition: str) -> None:
    assert json_filter(condition).matches(VALUE)


@pytest.mark.parametrize(
    "condition",
    [
        "$.users",
        "$.user.id.x",
        "$.user[0]",
        "$.tags.new",
        "$.tags[3]",
        "$.tags[-4]",
        "$.user.id == 8",
        '$.user.id == "7"',
        "$.user.on == 1",
        "$.user.id != 7",
        "$.user.name > 5",
        "$.user.none < 1",
        "$.tags[*] == old",
        "$.rows[*].n > 20",
        "$.text ~ Late",
        "$.user.id ~ 7",
        "$.gone != 1",
    ],
)
def test_it_does_not_match(condition: str) -> None:
    assert not json_filter(condition).matches(VALUE)


@pytest.mark.parametrize("value", [None, b"", b"text", b'{"a": 1', b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_matches_nothing(value: bytes | None) -> None:
    assert not json_filter("$").matches(value)


@pytest.mark.parametrize(
    ("condition", "error"),
    [
        ("", "A path is as in"),
        ("== 7", "A path is as in"),
        ("$.a ==", "nothing to compare with"),
        ("$.a b", "not understood from ' b' on"),
        ("$.a[x]", r"not understood from '\[x\]' on"),
        ("$..a", r"not understood from '\.\.a' on"),
        ("$" + ".a" * 33, "more than 32 steps"),
        ("$.a == " + "x" * 500, "more than 500 characters"),
    ],
)
def test_what_is_not_a_condition_is_refused(condition: str, error: str) -> None:
    with pytest.raises(BadFilter, match=error):
        json_filter(condition)


def test_any_text_is_a_condition_or_refused() -> None:
    chance = random.Random(11)
    characters = "$.[]*'\"=<>~!-" + string.ascii_letters[:4] + "01 \ud800é"
    for _ in range(3_000):
        text = "".join(chance.choices(characters, k=chance.randrange(14)))
        try:
            json_filter(text).matches(VALUE)
        except BadFilter:
            continue
