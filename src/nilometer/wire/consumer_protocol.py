"""The embedded protocol ``consumer``: the subscriptions and assignments of a group's members.

A member's metadata in JoinGroup is a subscription, its assignment in SyncGroup an assignment. A coordinator
of the classic protocol passes these bytes on without reading them; clients, and a coordinator that accepts
classic members in a consumer group (KIP-848), decode them. Never flexible, big-endian, after a version of two
bytes:

- subscription: topics and user data; from version 1 on the owned partitions (KIP-429), from 2 on the
  generation in which they were assigned (KIP-792), from 3 on the rack (KIP-881);
- assignment: partitions and user data, the same in all versions.

Invariant: decoding any bytes returns a value or raises MalformedMessage, with memory proportional to their
length. A version above the known ones is decoded as the newest known one: later versions only append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from nilometer.wire.errors import MalformedMessage

PROTOCOL_TYPE = "consumer"
HIGHEST_VERSION = 3
NO_GENERATION = -1

OWNED_SINCE = 1
GENERATION_SINCE = 2
RACK_SINCE = 3

Partitions = tuple[tuple[str, int], ...]
"""(topic, partition) pairs."""


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: tuple[str, ...]
    user_data: bytes | None = None
    """The assignor's data, not interpreted here."""
    owned: Partitions = ()
    generation: int = NO_GENERATION
    """The generation in which ``owned`` was assigned."""
    rack: str | None = None
    version: int = HIGHEST_VERSION


@dataclass(frozen=True, slots=True)
class Assignment:
    partitions: Partitions = ()
    user_data: bytes | None = None
    version: int = HIGHEST_VERSION


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode in the subscription's version, with the topics sorted because members compare these bytes."""
    version = subscription.version
    pieces = [_SHORT(version), _INT(len(subscription.topics))]
    pieces += [_string(topic) for topic in sorted(subscription.topics)]
    pieces.append(_bytes(subscription.user_data))
    if version >= OWNED_SINCE:
        pieces.append(_partitions(subscription.owned))
    if version >= GENERATION_SINCE:
        pieces.append(_INT(subscription.generation))
    if version >= RACK_SINCE:
        pieces.append(_NULL_STRING if subscription.rack is None else _string(subscription.rack))
    return b"".join(pieces)


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises MalformedMessage."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.string() for _ in range(reader.count(smallest=2)))
    user_data = reader.nullable_bytes()
    owned = reader.partitions() if version >= OWNED_SINCE else ()
    generation = reader.int() if version >= GENERATION_SINCE else NO_GENERATION
    rack = reader.nullable_string() if version >= RACK_SINCE else None
    return Subscription(topics, user_data, owned, generation, rack, version)


def encode_assignment(assignment: Assignment) -> bytes:
    pieces = (_SHORT(assignment.version), _partitions(assignment.partitions), _bytes(assignment.user_data))
    return b"".join(pieces)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment; empty bytes mean no partitions. Raises MalformedMessage."""
    if not data:
        return Assignment()
    reader = _Reader(data)
    version = reader.version()
    partitions = reader.partitions()
    return Assignment(partitions, reader.nullable_bytes(), version)


def _string(value: str) -> bytes:
    encoded = value.encode()
    return _SHORT(len(encoded)) + encoded


def _bytes(value: bytes | None) -> bytes:
    return _NULL_BYTES if value is None else _INT(len(value)) + value


def _partitions(partitions: Iterable[tuple[str, int]]) -> bytes:
    """Encode partitions, grouped by topic and sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    pieces = [_INT(len(topics))]
    for topic, numbers in topics.items():
        pieces += (_string(topic), struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(pieces)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def version(self) -> int:
        version = self._short()
        if version < 0:
            raise MalformedMessage(f"invalid version {version} of the consumer protocol")
        return min(version, HIGHEST_VERSION)

    def count(self, smallest: int) -> int:
        """Read the number of elements that follow, each of at least ``smallest`` bytes."""
        count = self.int()
        if not 0 <= count * smallest <= len(self._data) - self._position:
            raise MalformedMessage(f"{count} elements in a message of {len(self._data)} bytes")
        return count

    def int(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedMessage("null in a string field that is not nullable")
        return value

    def nullable_string(self) -> str | None:
        size = self._short()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise MalformedMessage("a string is not UTF-8") from None

    def nullable_bytes(self) -> bytes | None:
        size = self.int()
        return None if size == -1 else self._take(size)

    def partitions(self) -> Partitions:
        found: list[tuple[str, int]] = []
        for _ in range(self.count(smallest=6)):
            topic = self.string()
            found += [(topic, self.int()) for _ in range(self.count(smallest=4))]
        return tuple(found)

    def _short(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise MalformedMessage(
                f"field of {size} bytes, but {len(self._data) - self._position} bytes remain"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken


_SHORT = struct.Struct(">h").pack
_INT = struct.Struct(">i").pack
_NULL_STRING = b"\xff\xff"
_NULL_BYTES = b"\xff\xff\xff\xff"
