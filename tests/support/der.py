"""Names and certificates in DER, with attributes that no tool would write."""

from __future__ import annotations

from collections.abc import Iterable

SEQUENCE, SET, IDENTIFIER = 0x30, 0x31, 0x06
UTF8, PRINTABLE, T61, IA5, BMP = 0x0C, 0x13, 0x14, 0x16, 0x1E

Attribute = tuple[str, int, bytes]
"""The identifier of an attribute's type, and its value's tag and bytes."""


def name(parts: Iterable[Iterable[Attribute]]) -> bytes:
    """Return a name; each part has one or more attributes."""
    return _element(SEQUENCE, b"".join(_part(part) for part in parts))


def certificate(subject: bytes) -> bytes:
    """Return an unsigned certificate with the fields up to its subject only."""
    before = _element(0x02, b"\1") + 3 * _element(SEQUENCE, b"")
    return _element(SEQUENCE, _element(SEQUENCE, before + subject))


def _part(attributes: Iterable[Attribute]) -> bytes:
    pairs = (_identifier(kind) + _element(tag, value) for kind, tag, value in attributes)
    return _element(SET, b"".join(_element(SEQUENCE, pair) for pair in pairs))


def _element(tag: int, value: bytes) -> bytes:
    size = len(value)
    if size < 0x80:
        return bytes((tag, size)) + value
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + value


def _identifier(text: str) -> bytes:
    first, second, *others = map(int, text.split("."))
    return _element(IDENTIFIER, b"".join(map(_base_128, (40 * first + second, *others))))


def _base_128(number: int) -> bytes:
    digits = bytearray((number & 0x7F,))
    while number := number >> 7:
        digits.append(0x80 | number & 0x7F)
    return bytes(reversed(digits))
