"""What a local variable of a loop is in compiled code, named by its annotation (:mod:`.declarations`).

Interpreted, these are what they are aliases of. A function that has such a variable is one in C: it contains
neither a generator nor an inner function. A loop in C keeps the interpreter's lock: one of many turns calls
:func:`let_threads_run` now and then.
"""

from __future__ import annotations

from typing import TypeAlias

Int64: TypeAlias = int
"""An integer of 64 bits. Compiled, arithmetic that overflows raises OverflowError."""
BytesView: TypeAlias = bytes
"""Bytes that are read one by one; a position outside of them raises IndexError."""
WritableView: TypeAlias = bytearray
"""Bytes that are also written one by one. The bytearray keeps its size until the function returns."""
Int64View: TypeAlias = "memoryview[int]"
"""Integers of 64 bits in memory."""


def let_threads_run() -> None:
    """Let another thread run, if one waits: the interpreter gives its lock away where an interpreted function
    begins, and this one is never compiled."""
