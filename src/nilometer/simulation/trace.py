"""The trace of a simulation: one line for each event, and one hash of all lines.

Two simulations that ran the same way have the same hash; different traces show where they diverged. The hash
covers every line, but only the last lines are kept; a sink can get all.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

LINES_KEPT = 5_000


class Trace:
    def __init__(self, now: Callable[[], float], sink: Callable[[str], object] | None = None) -> None:
        self._now = now
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.count = 0
        self.observer: Callable[[str, str], object] | None = None
        """Called with the parts of each line."""

    def note(self, who: str, what: str) -> None:
        """Add the line "``who`` ``what``" with the current time.

        A line must not depend on object addresses or hash order.
        """
        line = f"{self._now():.6f} {who} {what}"
        self._hash.update(f"{line}\n".encode())
        self.lines.append(line)
        self.count += 1
        if self._sink is not None:
            self._sink(line)
        if self.observer is not None:
            self.observer(who, what)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def of(self, who: str, limit: int = 50) -> list[str]:
        """Return the last lines about processes or hosts whose name starts with ``who``."""
        return [line for line in self.lines if line.split(" ", 2)[1].startswith(who)][-limit:]
