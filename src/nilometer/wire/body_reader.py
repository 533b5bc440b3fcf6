"""Decoding the body of a message by hand-written code: every read advances a position in the frame.

For the few messages that arrive thousands of times a second. It reads the primitive types, in their legacy
and compact encodings. A read beyond the end of the frame raises MalformedRequest, IndexError or
``struct.error``; no memory is allocated according to a count in the message.

A message with many elements is decoded in slices (:func:`begin`), by a generator that yields after each.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Generator
from typing import Any, TypeVar, cast
from uuid import UUID

from nilometer.steps import at_once
from nilometer.wire.errors import MalformedMessage, MalformedRequest
from nilometer.wire.primitives import STRING_BYTES_MAX, tagged_bounds

_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from
_VARINT_BYTES_MAX = 5
_UUID_BYTES = 16

T = TypeVar("T")

SLICE_ELEMENTS = 256
"""So many elements are decoded between two steps."""
ELEMENTS_MAX = 200_000
"""A request with more elements in all its arrays is refused: its values and its response would take more than
100 MB. Few clusters have so many partitions."""


class BodyReader:
    __slots__ = ("elements", "end", "flexible", "frame", "position")

    def __init__(self, frame: memoryview, position: int, *, flexible: bool) -> None:
        self.frame = frame
        self.position = position
        self.end = len(frame)
        self.flexible = flexible
        self.elements = 0
        """How many have been read, as far as they were counted."""

    def ends_slice(self) -> bool:
        """Count an element; return whether it is the last one of a slice. Raises MalformedRequest."""
        self.elements += 1
        if self.elements > ELEMENTS_MAX:
            raise MalformedRequest(f"more than {ELEMENTS_MAX} elements in one request")
        return not self.elements % SLICE_ELEMENTS

    def fixed(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read adjacent fields of fixed size."""
        values = layout.unpack_from(self.frame, self.position)
        self.position += layout.size
        return values

    def int32(self) -> int:
        (value,) = _INT32(self.frame, self.position)
        self.position += 4
        return value

    def uuid(self) -> UUID:
        return uuid_of(self.raw_uuid())

    def raw_uuid(self) -> bytes:
        """Read a UUID as its bytes, which are hashed and compared faster."""
        return bytes(self.take(_UUID_BYTES))

    def count(self) -> int:
        """Read an array's count. Raises MalformedRequest if the rest of the frame is too short for it."""
        count = self.length32()
        if not 0 <= count <= self.end - self.position:
            raise MalformedRequest(f"array of {count} elements in {self.end - self.position} remaining bytes")
        return count

    def nullable_string(self) -> str | None:
        length = self.varint() - 1 if self.flexible else self._length16()
        if length > STRING_BYTES_MAX:
            raise MalformedRequest(f"a string of {length} bytes; it may have {STRING_BYTES_MAX}")
        return None if length < 0 else str(self.take(length), "utf-8")

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedRequest("null in a string field that is not nullable")
        return text

    def skip_tags(self) -> None:
        """Skip the tagged fields, which a newer peer may send (KIP-482)."""
        if not self.flexible:
            return
        if self.frame[self.position] == 0:
            self.position += 1
            return
        self._tagged_bounds()

    def tagged_field(self, wanted: int) -> memoryview | None:
        """Read the tagged fields; return the bytes of the one with tag ``wanted``, or None."""
        found: memoryview | None = None
        for tag, start, stop in self._tagged_bounds():
            if tag == wanted:
                found = self.frame[start:stop]
        return found

    def _tagged_bounds(self) -> list[tuple[int, int, int]]:
        try:
            bounds, self.position = tagged_bounds(self.frame, self.position, self.end)
        except MalformedMessage as error:
            raise MalformedRequest(error.message) from None
        return bounds

    def take(self, length: int) -> memoryview:
        end = self.position + length
        if length < 0 or end > self.end:
            raise MalformedRequest(f"field of {length} bytes, but {self.end - self.position} bytes remain")
        taken = self.frame[self.position : end]
        self.position = end
        return taken

    def length32(self) -> int:
        """Read the length of an array or of bytes; negative for null."""
        return self.varint() - 1 if self.flexible else self.int32()

    def varint(self) -> int:
        value = self.frame[self.position]
        self.position += 1
        if value < 0x80:
            return value
        value &= 0x7F
        for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
            byte = self.frame[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedRequest("variable-length integer of more than five bytes")

    def _length16(self) -> int:
        (value,) = _INT16(self.frame, self.position)
        self.position += 2
        return value


def begin(slices: Generator[int, None, T]) -> T | Generator[int, None, T]:
    """Return the value, if it takes one slice; else ``slices``, of which the first one is done."""
    try:
        next(slices)
    except StopIteration as done:
        return done.value
    return slices


def end(begun: T | Generator[int, None, T]) -> T:
    """Return the value of what :func:`begin` has returned, with all slices that are left at once."""
    if not hasattr(begun, "send"):  # a generator may be of a compiled module
        return cast(T, begun)
    return at_once(cast(Generator[int, None, T], begun))


def compact_size(frame: memoryview, position: int) -> tuple[int, int]:
    """Read the compact size of bytes or of an array, negative for null; return it and the position after it.

    Raises IndexError at the end of the frame, MalformedRequest.
    """
    value = frame[position]
    if value < 0x80:
        return value - 1, position + 1
    if (high := frame[position + 1]) < 0x80:
        return (value & 0x7F | high << 7) - 1, position + 2
    reader = BodyReader(frame, position, flexible=True)
    return reader.varint() - 1, reader.position


@functools.lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> UUID:
    """Return a UUID, cached because the same topic ids occur in most requests."""
    return UUID(bytes=raw)
