"""Protobuf by the .proto texts of a registry: protoc reads them in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from nilometer.schema_registry.client import SchemaRegistry, framed
from nilometer.schema_registry.decoding import Decoded, Decoding, NotDecoded
from support.stub_registry import StubRegistry

PLACE = 'syntax = "proto3"; package shop; message Place { string zip = 1; }'
ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/place.proto";
message First { int32 n = 1; }
message Order {
  message Line { string name = 1; repeated int32 sizes = 2; }
  int64 order_id = 1;
  google.protobuf.Timestamp at = 2;
  Place to = 3;
  repeated Line lines = 4;
}
"""
FIRST, SECOND, LINE = b"\x00", b"\x02\x02", b"\x04\x02\x00"
"""Which message it is: the first, the one with index 1, and the first one within that."""


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as running:
        yield running


def test_messages_become_json_by_their_index_and_those_within(registry: StubRegistry) -> None:
    registry.add("place", PLACE, "PROTOBUF")
    references = [{"name": "shop/place.proto", "subject": "place", "version": 1}]
    number = registry.add("t", ORDER, "PROTOBUF", references)
    line = b"\x0a\x01a\x12\x02\x01\x02"
    order = b"\x08\x07\x12\x02\x08\x01\x1a\x03\x0a\x01z" + b"\x22" + bytes([len(line)]) + line
    decoding = Decoding(SchemaRegistry(registry.url))
    values = [framed(number, one) for one in (FIRST + b"\x08\x05", SECOND + order, LINE + line, FIRST)]
    found = decoding.decode(values)
    assert [(one.schema_id, one.kind) for one in found if isinstance(one, Decoded)] == [(2, "Protobuf")] * 4
    assert [json.loads(one.content) for one in found if isinstance(one, Decoded)] == [
        {"n": 5},
        {
            "order_id": "7",
            "at": "1970-01-01T00:00:01Z",
            "to": {"zip": "z"},
            "lines": [{"name": "a", "sizes": [1, 2]}],
        },
        {"name": "a", "sizes": [1, 2]},
        {},
    ]
    wrong = {
        b"": "the indexes of its message do not end",
        b"\x02\x0a": r"the schema has no message [5]",
        b"\x04\x02\x02": r"the schema has no message [1, 1]",
        b"\x01": "its message has -1 indexes",
        FIRST + b"\x08": "DecodeError",
    }
    for content, reason in wrong.items():
        [one] = decoding.decode([framed(number, content)])
        assert isinstance(one, NotDecoded)
        assert one.reason.startswith(f"it is no value of schema {number}, Protobuf: {reason}")


@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("message {", "a.proto", "it cannot be read: line:1:9: Expected message name"),
        ('import "nowhere.proto";', "a.proto", "it cannot be read: nowhere.proto: File not found"),
        (PLACE, "../a.proto", "it refers to '../a.proto', which is no name of a file within its folder"),
        (PLACE, "/tmp/a.proto", "it refers to '/tmp/a.proto', which is no name"),
    ],
)
def test_texts_that_cannot_be_read_have_a_reason(
    registry: StubRegistry, text: str, name: str, reason: str
) -> None:
    registry.add("place", PLACE, "PROTOBUF")
    number = registry.add("t", text, "PROTOBUF", [{"name": name, "subject": "place", "version": 1}])
    [found] = Decoding(SchemaRegistry(registry.url)).decode([framed(number, FIRST)])
    assert isinstance(found, NotDecoded)
    assert found.reason.startswith(f"schema {number} of the registry: {reason}")
