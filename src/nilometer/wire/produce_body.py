"""The body of a Produce request, versions 3 to 13, read by hand: batches stay where they were received.

The general reader copies every record set once; here they are views on the frame, good for as long as that
is. Whatever a peer sends ends in a value or in MalformedRequest; nothing is allocated by what a count claims.

Version notes: 9 flexible, 13 topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from nilometer.wire.errors import MalformedRequest

VERSION_MIN, VERSION_MAX = 3, 13

_FIRST_FLEXIBLE = 9
_FIRST_WITH_TOPIC_ID = 13
_ACKS_AND_TIMEOUT = struct.Struct(">hi").unpack_from
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_VARINT_BYTES_MAX = 5


class ProducedRecords(NamedTuple):
    partition: int
    records: memoryview | None


class ProducedToTopic(NamedTuple):
    topic: str | UUID
    """Its name, or from version 13 on its id."""
    partitions: Sequence[ProducedRecords]


class ProduceBody(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: Sequence[ProducedToTopic]


def decode_produce_body(version: int, frame: memoryview, position: int) -> ProduceBody:
    """``position`` is where the header's client id ends. Raises MalformedRequest."""
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise ValueError(f"Produce version {version}")
    reader = _Reader(frame, position, flexible=version >= _FIRST_FLEXIBLE)
    try:
        reader.skip_tags()  # of the header
        transactional_id = reader.nullable_string()
        acks, timeout_ms = reader.acks_and_timeout()
        by_id = version >= _FIRST_WITH_TOPIC_ID
        topics = [reader.topic(by_id) for _ in range(reader.count())]
        reader.skip_tags()
    except (struct.error, IndexError) as problem:
        raise MalformedRequest(f"the Produce request ends too early: {problem}") from None
    except UnicodeDecodeError:
        raise MalformedRequest("a name is not UTF-8") from None
    return ProduceBody(transactional_id, acks, timeout_ms, topics)


class _Reader:
    """A position in the frame, moved by every read."""

    __slots__ = ("_end", "_flexible", "_frame", "_position")

    def __init__(self, frame: memoryview, position: int, *, flexible: bool) -> None:
        self._frame = frame
        self._position = position
        self._end = len(frame)
        self._flexible = flexible

    def topic(self, by_id: bool) -> ProducedToTopic:
        name = UUID(bytes=bytes(self._take(16))) if by_id else self._string()
        partitions = [self._partition() for _ in range(self.count())]
        self.skip_tags()
        return ProducedToTopic(name, partitions)

    def _partition(self) -> ProducedRecords:
        (index,) = _INT32(self._frame, self._position)
        self._position += 4
        length = self._length32()
        records = None if length < 0 else self._take(length)
        self.skip_tags()
        return ProducedRecords(index, records)

    def acks_and_timeout(self) -> tuple[int, int]:
        values = _ACKS_AND_TIMEOUT(self._frame, self._position)
        self._position += 6
        return values

    def count(self) -> int:
        """Of an array; one that cannot fit into what is left is refused before anything is made of it."""
        count = self._length32()
        if not 0 <= count <= self._end - self._position:
            raise MalformedRequest(f"an array of {count} in the {self._end - self._position} bytes left")
        return count

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self._flexible else self._length16()
        return None if length < 0 else str(self._take(length), "utf-8")

    def _string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRequest("a topic without a name")
        return text

    def skip_tags(self) -> None:
        """Tagged fields that a newer client may send (KIP-482)."""
        if not self._flexible:
            return
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _take(self, length: int) -> memoryview:
        end = self._position + length
        if length < 0 or end > self._end:
            raise MalformedRequest(f"{length} bytes announced where {self._end - self._position} are left")
        taken = self._frame[self._position : end]
        self._position = end
        return taken

    def _length32(self) -> int:
        if self._flexible:
            return self._varint() - 1
        (length,) = _INT32(self._frame, self._position)
        self._position += 4
        return length

    def _length16(self) -> int:
        (length,) = _INT16(self._frame, self._position)
        self._position += 2
        return length

    def _varint(self) -> int:
        value = shift = 0
        for _ in range(_VARINT_BYTES_MAX):
            byte = self._frame[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise MalformedRequest("a length of more than five bytes")
