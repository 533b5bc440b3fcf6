"""Computes the partition of an internal topic that keeps a group or a transactional id (SPEC C-3).

The hash is Java's ``String.hashCode``: over UTF-16 units, wrapping at 32 bits, signed. Kafka takes its
absolute value, and 0 for the minimum, which has none.
"""

from __future__ import annotations

_INT32_MIN = -(2**31)


def java_string_hash(text: str) -> int:
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def partition_for_key(key: str, partitions_count: int) -> int:
    value = java_string_hash(key)
    return (0 if value == _INT32_MIN else abs(value)) % partitions_count
