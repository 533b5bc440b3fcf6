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

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import Reader, Writer

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
    writer = Writer(version, flexible=False)
    writer.strings(sorted(subscription.topics))
    writer.nullable_blob(subscription.user_data)
    if version >= OWNED_SINCE:
        _write_partitions(writer, subscription.owned)
    if version >= GENERATION_SINCE:
        writer.int32(subscription.generation)
    if version >= RACK_SINCE:
        writer.string(subscription.rack)
    return writer.done()


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises MalformedMessage."""
    reader = Reader(data)
    version = _known_version(reader)
    topics, user_data = reader.strings(), reader.nullable_blob()
    owned = _read_partitions(reader) if version >= OWNED_SINCE else ()
    generation = reader.int32() if version >= GENERATION_SINCE else NO_GENERATION
    rack = reader.nullable_string() if version >= RACK_SINCE else None
    return Subscription(topics, user_data, owned, generation, rack, version)


def encode_assignment(assignment: Assignment) -> bytes:
    writer = Writer(assignment.version, flexible=False)
    _write_partitions(writer, assignment.partitions)
    writer.nullable_blob(assignment.user_data)
    return writer.done()


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment; empty bytes mean no partitions. Raises MalformedMessage."""
    if not data:
        return Assignment()
    reader = Reader(data)
    version = _known_version(reader)
    return Assignment(_read_partitions(reader), reader.nullable_blob(), version)


def _known_version(reader: Reader) -> int:
    if reader.version < 0:
        raise MalformedMessage(f"invalid version {reader.version} of the consumer protocol")
    return min(reader.version, HIGHEST_VERSION)


def _write_partitions(writer: Writer, partitions: Iterable[tuple[str, int]]) -> None:
    """Write partitions, grouped by topic and sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)

    def write(topic: tuple[str, list[int]]) -> None:
        writer.string(topic[0])
        writer.int32s(topic[1])

    writer.array(topics.items(), write)


def _read_partitions(reader: Reader) -> Partitions:
    def read() -> Partitions:
        topic = reader.string()
        return tuple((topic, number) for number in reader.int32s())

    return tuple(chain.from_iterable(reader.array(read)))
