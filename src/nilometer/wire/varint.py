"""Variable-length integers: zigzag ones (in records) and unsigned ones (in flexible messages).

Small non-negative values are encoded with a table, since nearly all lengths and deltas are small.
"""

from __future__ import annotations

from nilometer.wire.errors import CorruptBatch

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


ZIGZAG_TABLE_SIZE = 4096
ZIGZAG_TABLE = tuple(encode_unsigned(value << 1) for value in range(ZIGZAG_TABLE_SIZE))
"""``ZIGZAG_TABLE[n]`` is the encoding of n, for 0 <= n < ZIGZAG_TABLE_SIZE."""


def encode_zigzag(value: int) -> bytes:
    if 0 <= value < ZIGZAG_TABLE_SIZE:
        return ZIGZAG_TABLE[value]
    return encode_unsigned(value << 1 if value >= 0 else ((-value) << 1) - 1)


def decode_zigzag(buffer: bytes, position: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """Return the value at ``position`` and the position after it.

    Raises CorruptBatch if it has more than ``bytes_max`` bytes, IndexError at the end of the buffer.
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
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise CorruptBatch(f"variable-length integer of more than {bytes_max} bytes")
