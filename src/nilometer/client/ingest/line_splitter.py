"""Bytes into lines, however they are cut. Pure.

A line ends with a newline, which is not part of it; nothing else is changed. Invariant: the lines given out,
each with its newline, and ``rest`` are the bytes fed, in order.
"""

from __future__ import annotations

LINE_BYTES_MAX = 64 * 1024 * 1024
"""A line may not grow above this: what has no newline for so long is no log."""


class LineTooLong(ValueError):
    """No newline in :data:`LINE_BYTES_MAX` bytes."""


class LineSplitter:
    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest_bytes(self) -> int:
        """Bytes of the line that is not complete."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes. Raises LineTooLong."""
        if b"\n" not in data:
            self._keep(data)
            return []
        lines = data.split(b"\n")
        last = lines.pop()
        if self._size:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._size = [], 0
        self._keep(last)
        return lines

    def finish(self) -> bytes | None:
        """The last line, where it has no newline; None where there is none."""
        if not self._size:
            return None
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        return line

    def _keep(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
            if self._size > LINE_BYTES_MAX:
                raise LineTooLong(f"no newline in {self._size} bytes")
