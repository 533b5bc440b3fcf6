"""Encodings of primitive types, for the hand-written messages and the general encoder.

Each has two forms: legacy, and compact for flexible versions (KIP-482). A compact size is encoded as
size + 1, since zero means null.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.wire.varint import encode_unsigned

NULL_UUID = bytes(16)
_TABLE_SIZE = 4096
_UNSIGNED = tuple(encode_unsigned(value) for value in range(_TABLE_SIZE))
_INT32 = struct.Struct(">i").pack


class NodeEndpoint(NamedTuple):
    """The endpoint of a new leader, in a produce or fetch response (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class LeaderIdAndEpoch(NamedTuple):
    leader_id: int
    leader_epoch: int


def unsigned(value: int) -> bytes:
    return _UNSIGNED[value] if value < _TABLE_SIZE else encode_unsigned(value)


def string(value: str | None, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = value.encode()
    return (unsigned(len(encoded) + 1) if flexible else len(encoded).to_bytes(2, "big")) + encoded


def array_size(count: int, flexible: bool) -> bytes:
    return unsigned(count + 1) if flexible else _INT32(count)


def null_array(flexible: bool) -> bytes:
    return b"\x00" if flexible else b"\xff\xff\xff\xff"


def bytes_size(size: int, flexible: bool) -> bytes:
    return unsigned(size + 1) if flexible else _INT32(size)


def topic(name: str | UUID | bytes, flexible: bool) -> bytes:
    """Encode a topic's name, or its id (perhaps as bytes) in the versions that have ids."""
    if isinstance(name, str):
        return string(name, flexible)
    return name if isinstance(name, bytes) else name.bytes


def tagged_fields(fields: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode a section of tagged fields; ``fields`` are (tag, encoded value), ascending by tag."""
    parts = [unsigned(len(fields))]
    for tag, encoded in fields:
        parts += (unsigned(tag), unsigned(len(encoded)), encoded)
    return b"".join(parts)


def node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Encode the endpoints as the value of a tagged field."""
    parts = [unsigned(len(endpoints) + 1)]
    for endpoint in endpoints:
        parts += (
            _INT32(endpoint.node_id),
            string(endpoint.host, True),
            _INT32(endpoint.port),
            string(endpoint.rack, True),
            b"\x00",
        )
    return b"".join(parts)
