"""What a local variable of a loop is in compiled code, named by its annotation (:mod:`.declarations`).

Interpreted, these are what they are aliases of. A function that has such a variable is one in C: it contains
neither a generator nor an inner function, and each name that its loop reads is such a variable.
"""

from __future__ import annotations

from typing import TypeAlias

Int64: TypeAlias = int
"""An integer of 64 bits. Arithmetic that overflows raises OverflowError."""
BytesView: TypeAlias = bytes
"""Bytes that are read one by one; a position outside of them raises IndexError."""
WritableView: TypeAlias = bytearray
"""Bytes that are also written one by one. The bytearray keeps its size until the function returns."""
Int64View: TypeAlias = "memoryview[int]"
"""Integers of 64 bits in memory."""
