"""Joins the lines of a trace with the line before them: one event, one record. Pure.

A line that is indented, or that continues the trace of an exception in Java, Python, .NET or Go, belongs to
the event that the line before it belongs to. An event is complete when the next one begins. Invariant: the
lines that were added are the lines of the events returned and of the one that is open, in order.
"""

from __future__ import annotations

import re
from typing import Final

LINES_MAX: Final = 1_000
"""The lines of one event. What follows is an event of its own."""

_CONTINUES: Final = re.compile(
    rb"[ \t]+[^ \t]|Caused by: |Suppressed: |Traceback \(most recent call last\):"
    rb"|(?:[A-Za-z_][A-Za-z0-9_]*\.)*[A-Z][A-Za-z0-9_]*(?:Error|Exception|Throwable|Interrupt|Exit)(?::|$)"
)
_IN_PYTHON: Final = re.compile(rb"During handling of the above|The above exception was the direct cause|$")
_IN_GO: Final = re.compile(
    rb"goroutine [0-9]+ \[|\[signal |created by |exit status [0-9]+$|panic: |[^ \t(]+\.[^ \t]+\(.*\)$|$"
)
_TRACEBACK: Final = b"Traceback (most recent call last):"
_PANIC: Final = re.compile(rb"(?:panic|fatal error): |goroutine [0-9]+ \[")


class EventJoiner:
    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """The lines of the open event."""
        self._size = 0
        self._more: re.Pattern[bytes] | None = None

    def add(self, line: bytes, size_max: int) -> list[bytes]:
        """Add a line; return the lines of the event that it completes, if any.

        An event has at most ``size_max`` bytes with newlines between its lines, unless one line has more.
        """
        if self.lines and self._continues(line, size_max):
            self.lines.append(line)
            self._size += 1 + len(line)
            if line.startswith(_TRACEBACK):
                self._more = _IN_PYTHON
            return []
        done, self.lines = self.lines, [line]
        self._size = len(line)
        self._more = _IN_GO if _PANIC.match(line) else _IN_PYTHON if line.startswith(_TRACEBACK) else None
        return done

    def take(self) -> list[bytes]:
        """Return the lines of the open event, which is complete then."""
        done, self.lines, self._size, self._more = self.lines, [], 0, None
        return done

    def _continues(self, line: bytes, size_max: int) -> bool:
        if len(self.lines) >= LINES_MAX or self._size + 1 + len(line) > size_max:
            return False
        return bool(_CONTINUES.match(line) or (self._more is not None and self._more.match(line)))
