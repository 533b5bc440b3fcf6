"""Splits bytes, which arrive in arbitrary pieces, into lines. Pure.

A line ends with LF or CRLF, which is not part of it; any other CR is. Two things around lines are no lines
either: a byte order mark at the beginning of a file, and NULs before a line. Those are a hole: a writer that
does not append leaves it in a file that was truncated. Nothing else is changed, and with ``is_exact`` nothing
at all: only LF ends a line then. A line longer than a limit is
not kept in memory: it is returned in parts as they arrive. Invariant: the returned lines and parts, with what
is named here, and the incomplete rest are the bytes fed, in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LINE_BYTES_MAX = 64 * 1024 * 1024
"""The largest line that is kept in memory: a file with longer ones is hardly a log."""


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LineTooLong(ValueError):
    """A line that is too long to be processed."""


@dataclass(frozen=True, slots=True)
class LinePart:
    """A part of a line whose length is above the splitter's limit; the part itself may have any length."""

    data: bytes
    is_last: bool
    """Whether the line ends with this part."""


class LineSplitter:
    __slots__ = (
        "_is_above",
        "_is_begin",
        "_is_exact",
        "_parts",
        "_rest_bytes",
        "_size",
        "hole_bytes",
        "limit",
    )

    def __init__(self, limit: int = LINE_BYTES_MAX, *, is_begin: bool = True, is_exact: bool = False) -> None:
        """``is_begin``: the first bytes are those of a file, which may be a byte order mark. ``is_exact``:
        the lines are values, and no byte of them is left out."""
        self.limit = limit
        """The maximum size, in bytes, of a line that is kept until it is complete."""
        self.hole_bytes = 0
        """The number of NULs that were left out so far."""
        self._is_begin = is_begin and not is_exact
        self._is_exact = is_exact
        self._parts: list[bytes] = []
        self._size = 0
        self._rest_bytes = 0
        self._is_above = False

    @property
    def rest_bytes(self) -> int:
        """The number of bytes since the last newline, including those of parts that were returned."""
        return self._rest_bytes

    def feed(self, data: bytes) -> list[bytes | LinePart]:
        """Return the lines that ``data`` completes, and parts of lines above the limit."""
        if b"\n" not in data:
            return self._keep(data)
        lines = data.split(b"\n")
        rest = lines.pop()
        found: list[bytes | LinePart] = [self._complete(lines[0])]
        if b"\r" in data or b"\0" in data:
            found += [self._without_end(self._without_hole(line)) for line in lines[1:]]
        else:
            found += lines[1:]
        found += self._keep(rest)
        return found

    def finish(self) -> bytes | LinePart | None:
        """Return the incomplete last line or its last part; None if there is none."""
        self._rest_bytes = 0
        return (self._taken(b"") or None) if self._size else None

    def _complete(self, data: bytes) -> bytes | LinePart:
        line = self._taken(data if self._size else self._without_hole(data))
        self._rest_bytes = 0
        if isinstance(line, LinePart):
            return LinePart(self._without_end(line.data), is_last=True)
        return self._without_end(line)

    def _taken(self, data: bytes) -> bytes | LinePart:
        parts, is_above = self._parts, self._is_above
        self._parts, self._size, self._is_above = [], 0, False
        whole = b"".join([*parts, data])
        return LinePart(whole, is_last=True) if is_above else self._without_mark(whole)

    def _keep(self, data: bytes) -> list[bytes | LinePart]:
        self._rest_bytes += len(data)
        if not self._size:
            data = self._without_hole(data)
        self._size += len(data)
        if data:
            self._parts.append(data)
        if self._size <= self.limit or not data:
            return []
        whole = b"".join(self._parts) if self._is_above else self._without_mark(b"".join(self._parts))
        self._is_above = True
        part = self._without_end(whole)
        self._parts = [] if part is whole else [whole[-1:]]  # it may belong to the line's end
        return [LinePart(part, is_last=False)]

    def _without_end(self, line: bytes) -> bytes:
        """Return a line without the CR of its end; the same object if there is none."""
        return line if self._is_exact or not line.endswith(b"\r") else line[:-1]

    def _without_hole(self, data: bytes) -> bytes:
        """Return ``data``, the beginning of a line, without the NULs before it."""
        if self._is_exact or not data.startswith(b"\0"):
            return data
        line = data.lstrip(b"\0")
        self.hole_bytes += len(data) - len(line)
        return line

    def _without_mark(self, line: bytes) -> bytes:
        if not self._is_begin:
            return line
        self._is_begin = False
        return line.removeprefix(BYTE_ORDER_MARK)


def whole_lines(found: Iterable[bytes | LinePart]) -> list[bytes]:
    """Return the lines of ``found``. Raises LineTooLong if one is above the limit."""
    lines: list[bytes] = []
    for line in found:
        if isinstance(line, LinePart):
            raise LineTooLong(f"no newline in {len(line.data)} bytes")
        lines.append(line)
    return lines
