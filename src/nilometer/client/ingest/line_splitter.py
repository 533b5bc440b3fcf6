"""Splits bytes, which arrive in arbitrary pieces, into lines. Pure.

A line ends with a newline, which is not part of it; nothing else is changed. A line longer than a limit is
not kept in memory: it is returned in parts as they arrive. Invariant: the returned lines and parts, with a
newline after each line and each last part, and the incomplete rest are the bytes fed, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LINE_BYTES_MAX = 64 * 1024 * 1024
"""The largest line that is kept in memory: a file with longer ones is hardly a log."""


class LineTooLong(ValueError):
    """A line that is too long to be processed."""


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of a line whose length is above the splitter's limit; the part itself may have any length."""

    data: bytes
    is_last: bool
    """Whether the line ends with this part."""


class LineSplitter:
    __slots__ = ("_is_above", "_parts", "_size", "limit")

    def __init__(self, limit: int = LINE_BYTES_MAX) -> None:
        self.limit = limit
        """The maximum size, in bytes, of a line that is kept until it is complete."""
        self._parts: list[bytes] = []
        self._size = 0
        self._is_above = False

    @property
    def rest_bytes(self) -> int:
        """The size of the incomplete line, including parts that were returned."""
        return self._size

    def feed(self, data: bytes) -> list[bytes | LinePart]:
        """Return the lines that ``data`` completes, and parts of lines above the limit."""
        if b"\n" not in data:
            return self._keep(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        found: list[bytes | LinePart] = [*lines]
        if self._size:
            found[0] = self._complete(lines[0])
        found += self._keep(rest)
        return found

    def finish(self) -> bytes | LinePart | None:
        """Return the incomplete last line or its last part; None if there is none."""
        return self._complete(b"") if self._size else None

    def _complete(self, data: bytes) -> bytes | LinePart:
        parts, is_above = self._parts, self._is_above
        self._parts, self._size, self._is_above = [], 0, False
        return LinePart(data, is_last=True) if is_above else b"".join([*parts, data])

    def _keep(self, data: bytes) -> list[bytes | LinePart]:
        self._size += len(data)
        if data:
            self._parts.append(data)
        if self._size <= self.limit or not self._parts:
            return []
        self._is_above = True
        part = LinePart(b"".join(self._parts), is_last=False)
        self._parts = []
        return [part]


def whole_lines(found: Iterable[bytes | LinePart]) -> list[bytes]:
    """Return the lines of ``found``. Raises LineTooLong if one is above the limit."""
    lines: list[bytes] = []
    for line in found:
        if isinstance(line, LinePart):
            raise LineTooLong(f"no newline in {len(line.data)} bytes")
        lines.append(line)
    return lines
