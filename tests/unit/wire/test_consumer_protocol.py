"""Subscriptions and assignments of the embedded consumer protocol, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import (
    HIGHEST_VERSION,
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

TOPICS = b"\0\0\0\2\0\1a\0\2bc"
OWNED = b"\0\0\0\1\0\1a\0\0\0\2\0\0\0\0\0\0\0\7"

names = st.text(max_size=20)
partitions = st.sets(st.tuples(names, st.integers(0, 2**31 - 1)), max_size=8).map(
    lambda found: tuple(sorted(found))
)


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, b"\0\0" + TOPICS + b"\0\0\0\1u"),
        (1, b"\0\1" + TOPICS + b"\0\0\0\1u" + OWNED),
        (2, b"\0\2" + TOPICS + b"\0\0\0\1u" + OWNED + b"\0\0\0\5"),
        (3, b"\0\3" + TOPICS + b"\0\0\0\1u" + OWNED + b"\0\0\0\5" + b"\0\2r1"),
    ],
)
def test_each_version_says_what_it_has_room_for(version: int, data: bytes) -> None:
    said = Subscription(("bc", "a"), b"u", (("a", 7), ("a", 0)), 5, "r1", version)
    assert encode_subscription(said) == data
    read = decode_subscription(data)
    assert read.topics == ("a", "bc")
    assert read.user_data == b"u"
    assert read.owned == ((("a", 0), ("a", 7)) if version >= 1 else ())
    assert read.generation == (5 if version >= 2 else -1)
    assert read.rack == ("r1" if version >= 3 else None)
    assert read.version == version


def test_an_assignment_byte_for_byte() -> None:
    assert encode_assignment(Assignment((("a", 7), ("a", 0)))) == b"\0\3" + OWNED + b"\xff\xff\xff\xff"
    assert decode_assignment(b"\0\0" + OWNED + b"\xff\xff\xff\xff") == Assignment(
        (("a", 0), ("a", 7)), None, version=0
    )
    assert decode_assignment(b"") == Assignment()


def test_what_a_later_version_appends_is_passed_over() -> None:
    later = b"\0\7" + encode_subscription(Subscription(("t",), rack="r"))[2:] + b"more"
    assert decode_subscription(later) == Subscription(("t",), rack="r", version=HIGHEST_VERSION)


@given(names.map(lambda name: (name,)), st.none() | st.binary(max_size=9), partitions, st.none() | names)
def test_what_is_written_is_read(topics, user_data, owned, rack) -> None:
    said = Subscription(topics, user_data, owned, 3, rack)
    assert decode_subscription(encode_subscription(said)) == said
    given_ = Assignment(owned, user_data)
    assert decode_assignment(encode_assignment(given_)) == given_


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\0\3" + data))
def test_any_bytes_end_in_a_value_or_in_a_malformed_message(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except MalformedMessage:
            continue


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff" + TOPICS,
        b"\0\0\x7f\xff\xff\xff",
        b"\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\0\0\1\0\1\xff\0\0\0\0",
        b"\0",
    ],
)
def test_nonsense_is_named(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_subscription(data)
