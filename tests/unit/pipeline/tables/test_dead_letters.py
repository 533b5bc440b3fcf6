"""Dead letters fit the topic that they are sent to, however large the rejected record is."""

from __future__ import annotations

import pytest

from nilometer.client.producer.batch import size_bound
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION
from nilometer.config import Settings
from nilometer.pipeline.tables.staging import (
    CARRIED_BYTES_MAX,
    PART_BYTES_MAX,
    REASON_CHARACTERS_MAX,
    Rejected,
    dead_letter,
)

MIB = 1 << 20
LIMIT = Settings(PRODUCER_CONFIG_DEFINITION, {}).integer("max.request.size")


def rejected(key, value, headers=None, reason="why"):
    record = {"key": key, "value": value, "topic": "t" * 249, "partition": 3, "offset": 2**62}
    return Rejected(record | {"headers": headers}, reason)


def said(letter):
    return {one["key"]: one["value"].decode() for one in letter["headers"] if one["key"].startswith("dead.")}


def test_a_letter_has_the_record_and_the_reason():
    own = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    letter = dead_letter(rejected(b"k", None, own, reason="no \ud800 text"))
    assert (letter["key"], letter["value"], letter["headers"][:2]) == (b"k", None, own)
    assert said(letter) == {
        "dead.reason": "no ? text",
        "dead.topic": "t" * 249,
        "dead.partition": "3",
        "dead.offset": str(2**62),
    }


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"k", b"v" * CARRIED_BYTES_MAX, None),
        (b"k", b"v" * (100 * MIB), None),
        (b"k" * MIB, b"v", None),
        (None, None, [{"key": "h", "value": b"x" * MIB}]),
        (b"k", b"v", [{"key": "h", "value": None}] * 200_000),
        (b"k" * (CARRIED_BYTES_MAX - 1), b"v", None),
        (b"k", None, [{"key": "\u00e9" * 9, "value": b"v"}] * (CARRIED_BYTES_MAX // 36)),
    ],
)
def test_a_letter_of_the_largest_record_can_be_sent(key, value, headers):
    letter = dead_letter(rejected(key, value, headers, reason="\u20ac" * 100_000))
    sent = [(one["key"], one["value"]) for one in letter["headers"]]
    assert size_bound(letter["key"], letter["value"], sent) + 1_000 < LIMIT
    assert len(said(letter)["dead.reason"]) == REASON_CHARACTERS_MAX


def test_what_a_letter_leaves_out_is_told_by_the_size_of_the_record():
    value = bytes(range(256)) * 8_000
    letter = dead_letter(rejected(b"k", value, [{"key": "h", "value": b"1"}]))
    assert letter["key"] == b"k"
    assert letter["value"] == value[:PART_BYTES_MAX]
    assert letter["headers"][0] == {"key": "h", "value": b"1"}
    assert int(said(letter)["dead.size"]) == 2_048_000 + 1 + 2
