"""The five bytes before a key or value that has a schema in a registry: 0, and the id of the schema. Pure."""

from __future__ import annotations

import struct
from typing import Final

HEADER: Final = struct.Struct(">bi")
NOT_FRAMED: Final = "it does not begin with the 5 bytes of a schema registry"


class BadValue(ValueError):
    """The bytes are no value of the schema; the message says why."""


def schema_id(data: bytes) -> int | None:
    """Return the id of the schema that ``data`` names; None if it names none."""
    if len(data) < HEADER.size:
        return None
    first, number = HEADER.unpack_from(data)
    return number if first == 0 and number >= 0 else None


def framed(number: int, content: bytes) -> bytes:
    """Return what is written for the schema with this id."""
    return HEADER.pack(0, number) + content
