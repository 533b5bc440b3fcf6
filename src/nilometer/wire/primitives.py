"""Encodings of primitive types, for records, the hand-written messages and the general encoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.wire.errors import CorruptBatch, MalformedMessage

# Variable-length integers: zigzag ones (in records) and unsigned ones (in flexible messages).
#
# Small non-negative values are encoded with a table, since nearly all lengths and deltas are small.

STRING_BYTES_MAX = 2**15 - 1
"""Of each string in a message, as in Kafka, also where its format could have more: it takes seconds to hash a
name of megabytes."""
TAGS_MAX = 32
"""Of the tagged fields in each place of a message: two bytes are enough for one, and each takes some time. No
place has more than a handful in Kafka's schemas."""
VARINT_BYTES_MAX = 5
VARLONG_BYTES_MAX = 10


def encode_unsigned(value: int) -> bytes:
    """Encode ``value``, which must not be negative, as an unsigned varint."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_unsigned(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes, and the position after it.

    Raises MalformedMessage, IndexError at the end of the buffer.
    """
    value, shift = 0, 0
    for at in range(position, position + VARINT_BYTES_MAX):
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
    raise MalformedMessage(f"variable-length integer of more than {VARINT_BYTES_MAX} bytes")


def tagged_bounds(
    buffer: bytes | memoryview, position: int, end: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Return (tag, start, stop) of each field in a section of tagged fields, and the position after the
    section, at most ``end``.

    Raises MalformedMessage, also for more fields than ``TAGS_MAX`` and for tags that do not rise (KIP-482);
    IndexError at the end of the buffer.
    """
    count, position = decode_unsigned(buffer, position)
    if count > TAGS_MAX:
        raise MalformedMessage(f"{count} tagged fields in one place; it may have {TAGS_MAX}")
    fields: list[tuple[int, int, int]] = []
    last = -1
    for _ in range(count):
        tag, position = decode_unsigned(buffer, position)
        size, start = decode_unsigned(buffer, position)
        position = start + size
        if tag <= last:
            raise MalformedMessage(f"tagged field {tag} after {last}")
        if position > end:
            raise MalformedMessage(f"tagged field {tag} of {size} bytes in {end - start}")
        fields.append((tag, start, position))
        last = tag
    return fields, position


ZIGZAG_TABLE_SIZE = 4096
ZIGZAG_TABLE = tuple(encode_unsigned(value << 1) for value in range(ZIGZAG_TABLE_SIZE))
"""``ZIGZAG_TABLE[n]`` is the encoding of n, for 0 <= n < ZIGZAG_TABLE_SIZE."""


def encode_zigzag(value: int) -> bytes:
    if 0 <= value < ZIGZAG_TABLE_SIZE:
        return ZIGZAG_TABLE[value]
    return encode_unsigned(value << 1 if value >= 0 else ((-value) << 1) - 1)


def decode_zigzag(buffer: bytes, position: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """Return the value at ``position`` and the position after it.

    Raises CorruptBatch if it has more than ``bytes_max`` bytes or more than 64 bits, IndexError at the end of
    the buffer.
    """
    first = buffer[position]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), position + 1
    second = buffer[position + 1]
    if second < 0x80:
        value = first & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value, shift = first & 0x7F | (second & 0x7F) << 7, 14
    for at in range(position + 2, position + bytes_max):
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise CorruptBatch(f"variable-length integer of more than {bytes_max} bytes or 64 bits")


# Encodings of primitive types, for the hand-written messages and the general encoder.
#
# Each has two forms: legacy, and compact for flexible versions (KIP-482). A compact size is encoded as
# size + 1, since zero means null.

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
