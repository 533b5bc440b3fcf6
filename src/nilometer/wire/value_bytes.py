"""Values with a version that no schema describes: the records of coordinators, and the subscriptions and
assignments of the protocol ``consumer``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from nilometer.wire.errors import MalformedMessage
from nilometer.wire.primitives import array_size, bytes_size, string, tagged_fields, unsigned

# Reads and writes values with a version that no schema describes: the records of coordinators, and what the
# members of a group send to each other. Legacy primitives, and compact ones in flexible versions.
#
# A :class:`Layout` lists the fields of a structure, and both reads and writes it.
#
# Invariant: reading any bytes ends with a value or with MalformedMessage, and takes memory proportional to
# their length.

Item = TypeVar("Item")

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_VARINT_BYTES_MAX = 5
_NULL, _PRESENT = -1, 1
"""The byte before a nullable structure."""


class Writer:
    def __init__(self, version: int, *, flexible: bool) -> None:
        """Begin with ``version``: a value's version, or a key's record type."""
        self.version = version
        self._flexible = flexible
        self._pieces = [_INT16.pack(version)]

    def int8(self, value: int) -> None:
        self._pieces.append(_INT8.pack(value))

    def int16(self, value: int) -> None:
        self._pieces.append(_INT16.pack(value))

    def uint16(self, value: int) -> None:
        self._pieces.append(_UINT16.pack(value))

    def int32(self, value: int) -> None:
        self._pieces.append(_INT32.pack(value))

    def int64(self, value: int) -> None:
        self._pieces.append(_INT64.pack(value))

    def uuid(self, value: UUID) -> None:
        self._pieces.append(value.bytes)

    def string(self, value: str | None) -> None:
        self._pieces.append(string(value, self._flexible))

    def blob(self, value: bytes) -> None:
        self._pieces += (bytes_size(len(value), self._flexible), value)

    def nullable_blob(self, value: bytes | None) -> None:
        if value is None:
            self._pieces.append(bytes_size(-1, self._flexible))
        else:
            self.blob(value)

    def array(self, items: Iterable[Item], write: Callable[[Item], None]) -> None:
        listed = list(items)
        self._pieces.append(array_size(len(listed), self._flexible))
        for item in listed:
            write(item)

    def nullable_array(self, items: Iterable[Item] | None, write: Callable[[Item], None]) -> None:
        if items is None:
            self._pieces.append(unsigned(0) if self._flexible else _INT32.pack(-1))
        else:
            self.array(items, write)

    def packed_array(self, row: struct.Struct, rows: Sequence[Sequence[int]]) -> None:
        """Write an array of structures that all have the same size: ``row`` has their fields and, in flexible
        versions, the number of their tagged fields."""
        self._pieces.append(array_size(len(rows), self._flexible))
        self._pieces.append(b"".join([row.pack(*values) for values in rows]))

    def int32s(self, values: Iterable[int]) -> None:
        listed = list(values)
        self._pieces += (array_size(len(listed), self._flexible), struct.pack(f">{len(listed)}i", *listed))

    def int16s(self, values: Iterable[int]) -> None:
        self.array(values, self.int16)

    def strings(self, values: Iterable[str]) -> None:
        self.array(values, self.string)

    def tags(self, *fields: tuple[int, bytes]) -> None:
        """Write the tagged fields, as (tag, bytes), at the end of a structure; nothing in versions that are
        not flexible."""
        if self._flexible:
            self._pieces.append(tagged_fields(fields))

    def done(self) -> bytes:
        return b"".join(self._pieces)


class Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False
        self.version = self.int16()

    @property
    def position(self) -> int:
        return self._position

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def uint16(self) -> int:
        return int.from_bytes(self._take(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise MalformedMessage("a string is null, and must not be")
        return value

    def nullable_string(self) -> str | None:
        size = self._unsigned() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise MalformedMessage("a string is not UTF-8") from None

    def blob(self) -> bytes:
        value = self.nullable_blob()
        if value is None:
            raise MalformedMessage("bytes are null, and must not be")
        return value

    def nullable_blob(self) -> bytes | None:
        size = self._unsigned() - 1 if self.flexible else self.int32()
        return None if size == -1 else self._take(size)

    def array(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        items = self.nullable_array(read)
        if items is None:
            raise MalformedMessage("an array is null, and must not be")
        return items

    def nullable_array(self, read: Callable[[], Item]) -> tuple[Item, ...] | None:
        count = self._count()
        return None if count == -1 else tuple(read() for _ in range(count))

    def packed_array(self, row: struct.Struct) -> list[tuple[int, ...]] | None:
        """Read an array of structures that all have the same size, as :meth:`Writer.packed_array` writes
        them; if one has tagged fields, nothing is read, and None is returned."""
        began = self._position
        count = self._count()
        if count == -1:
            raise MalformedMessage("an array is null, and must not be")
        rows = list(row.iter_unpack(self._take(count * row.size)))
        if self.flexible and any(values[-1] for values in rows):
            self._position = began
            return None
        return rows

    def _count(self) -> int:
        """Read the number of elements that follow; -1 if there is no array."""
        count = self._unsigned() - 1 if self.flexible else self.int32()
        if not -1 <= count <= len(self._data) - self._position:
            raise MalformedMessage(
                f"{count} elements where {len(self._data) - self._position} bytes are left"
            )
        return count

    def int32s(self) -> tuple[int, ...]:
        count = self._count()
        if count == -1:
            raise MalformedMessage("an array is null, and must not be")
        return struct.unpack(f">{count}i", self._take(count * _INT32.size))

    def int16s(self) -> tuple[int, ...]:
        return self.array(self.int16)

    def strings(self) -> tuple[str, ...]:
        return self.array(self.string)

    def tags(self) -> dict[int, Reader]:
        """Return the tagged fields by tag, each with a reader of its own; none in versions that are not
        flexible."""
        if not self.flexible:
            return {}
        found: dict[int, Reader] = {}
        for _ in range(self._unsigned()):
            tag = self._unsigned()
            found[tag] = _part(self._take(self._unsigned()))
        return found

    def _unsigned(self) -> int:
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise MalformedMessage("a variable-length number of more than five bytes")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise MalformedMessage(
                f"field of {size} bytes, but {len(self._data) - self._position} bytes remain"
            )
        taken = self._data[self._position : end]
        self._position = end
        return taken


class _BoundedReader(Reader):
    """Reads at most so many elements of all arrays together: of a few bytes each, they take a thousand times
    longer than a copy of their bytes."""

    def __init__(self, data: bytes, elements_max: int) -> None:
        super().__init__(data)
        self.elements_left = elements_max

    def _count(self) -> int:
        count = Reader._count(self)
        if count > self.elements_left:
            raise MalformedMessage(f"{count} elements where {self.elements_left} more are read")
        self.elements_left -= max(count, 0)
        return count


def _part(data: bytes) -> Reader:
    reader = Reader(b"\x00\x00" + data)
    reader.flexible = True
    return reader


class Field(NamedTuple):
    """How one field of a structure is written and read."""

    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]
    default: Any = None
    """The value in versions without the field, and of a tagged field that is left out."""
    since: int = 0
    until: int = 0x7FFF
    """The first and last version with the field."""
    tag: int | None = None

    def in_versions(self, since: int, until: int = 0x7FFF, *, default: Any) -> Field:
        return self._replace(since=since, until=until, default=default)

    def tagged(self, tag: int, *, default: Any) -> Field:
        """Return this as a tagged field, which is left out if it has the default."""
        return self._replace(tag=tag, default=default)

    def in_version(self, version: int) -> bool:
        return self.since <= version <= self.until

    def alone(self, value: Any) -> bytes:
        """Return the bytes of ``value`` without a version, as those of a tagged field."""
        writer = Writer(0, flexible=True)
        self.write(writer, value)
        return writer.done()[_INT16.size :]


INT8 = Field(Writer.int8, Reader.int8)
INT16 = Field(Writer.int16, Reader.int16)
INT32 = Field(Writer.int32, Reader.int32)
INT64 = Field(Writer.int64, Reader.int64)
UUID_BYTES = Field(Writer.uuid, Reader.uuid)
STRING = Field(Writer.string, Reader.string)
NULLABLE_STRING = Field(Writer.string, Reader.nullable_string)
BLOB = Field(Writer.blob, Reader.blob)
INT32S = Field(Writer.int32s, Reader.int32s)
INT16S = Field(Writer.int16s, Reader.int16s)
STRINGS = Field(Writer.strings, Reader.strings)
UINT16 = Field(Writer.uint16, Reader.uint16)


class Layout(Generic[Item]):
    """The fields of a structure by name, in the order in which they are written; tagged ones last."""

    def __init__(self, make: Callable[..., Item], **fields: Field) -> None:
        self.make = make
        self._plain = [(name, field) for name, field in fields.items() if field.tag is None]
        self._tagged = [(name, field.tag, field) for name, field in fields.items() if field.tag is not None]
        self._versions: dict[int, tuple[list[tuple[str, Field]], dict[str, Any]]] = {}

    def _version(self, version: int) -> tuple[list[tuple[str, Field]], dict[str, Any]]:
        """Return the fields of this version that are not tagged, and the defaults of those it lacks."""
        if version not in self._versions:
            present = [(name, field) for name, field in self._plain if field.in_version(version)]
            missing = {name: field.default for name, field in self._plain if not field.in_version(version)}
            self._versions[version] = present, missing
        return self._versions[version]

    def write(self, writer: Writer, value: Item) -> None:
        for name, field in self._version(writer.version)[0]:
            field.write(writer, getattr(value, name))
        tags: list[tuple[int, bytes]] = []
        for name, tag, field in self._tagged:
            if (item := getattr(value, name)) != field.default:
                tags.append((tag, field.alone(item)))
        writer.tags(*tags)

    def read(self, reader: Reader) -> Item:
        present, missing = self._version(reader.version)
        values = missing | {name: field.read(reader) for name, field in present}
        tags = reader.tags()
        for name, tag, field in self._tagged:
            values[name] = field.read(tags[tag]) if tag in tags else field.default
        return self.make(**values)

    @property
    def nullable(self) -> Field:
        """Such a structure or None, behind a byte that is negative for None."""

        def write(writer: Writer, value: Item | None) -> None:
            writer.int8(_NULL if value is None else _PRESENT)
            if value is not None:
                self.write(writer, value)

        def read(reader: Reader) -> Item | None:
            return None if reader.int8() < 0 else self.read(reader)

        return Field(write, read)

    @property
    def array(self) -> Field:
        """An array of such structures."""

        def write(writer: Writer, items: Iterable[Item]) -> None:
            writer.array(items, lambda item: self.write(writer, item))

        def read(reader: Reader) -> tuple[Item, ...]:
            return reader.array(lambda: self.read(reader))

        return Field(write, read)


# The embedded protocol ``consumer``: the subscriptions and assignments of a group's members.
#
# A member's metadata in JoinGroup is a subscription, its assignment in SyncGroup an assignment. A coordinator
# of the classic protocol passes these bytes on without reading them; clients, and a coordinator that accepts
# classic members in a consumer group (KIP-848), decode them. Never flexible, big-endian, after a version of
# two bytes:
#
# - subscription: topics and user data; from version 1 on the owned partitions (KIP-429), from 2 on the
#   generation in which they were assigned (KIP-792), from 3 on the rack (KIP-881);
# - assignment: partitions and user data, the same in all versions.
#
# Invariant: decoding any bytes returns a value or raises MalformedMessage, with memory proportional to their
# length. A version above the known ones is decoded as the newest known one: later versions only append
# fields.

# What a member may send has no number of elements, so who serves others says how many are read.

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


def decode_subscription(data: bytes, elements_max: int | None = None) -> Subscription:
    """Decode a subscription. Raises MalformedMessage, also if it has more elements than ``elements_max``."""
    reader = _reader(data, elements_max)
    version = _known_version(reader)
    topics, user_data = reader.strings(), reader.nullable_blob()
    owned = _read_partitions(reader) if version >= OWNED_SINCE else ()
    generation = reader.int32() if version >= GENERATION_SINCE else NO_GENERATION
    rack = reader.nullable_string() if version >= RACK_SINCE else None
    return Subscription(topics, user_data, owned, generation, rack, version)


def subscription_version(data: bytes) -> int:
    """Return the version of a subscription, of which nothing else is read. Raises MalformedMessage."""
    return _known_version(Reader(data))


class TopicsOfSubscription(NamedTuple):
    names: tuple[str, ...]
    encoded: bytes
    """Their bytes: who begins with the same, behind the version, subscribes to the same topics."""


def decode_topics(data: bytes, topics_max: int) -> TopicsOfSubscription:
    """Decode only the topics of a subscription. Raises MalformedMessage, also if there are more."""
    reader = _BoundedReader(data, topics_max)
    _known_version(reader)
    names = reader.strings()
    return TopicsOfSubscription(names, data[_INT16.size : reader.position])


def encode_assignment(assignment: Assignment) -> bytes:
    writer = Writer(assignment.version, flexible=False)
    _write_partitions(writer, assignment.partitions)
    writer.nullable_blob(assignment.user_data)
    return writer.done()


def decode_assignment(data: bytes, elements_max: int | None = None) -> Assignment:
    """Decode an assignment; empty bytes mean no partitions. Raises MalformedMessage, also if it has more
    elements than ``elements_max``."""
    if not data:
        return Assignment()
    reader = _reader(data, elements_max)
    version = _known_version(reader)
    return Assignment(_read_partitions(reader), reader.nullable_blob(), version)


def _reader(data: bytes, elements_max: int | None) -> Reader:
    return Reader(data) if elements_max is None else _BoundedReader(data, elements_max)


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
