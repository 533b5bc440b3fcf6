"""Time, in two kinds that must not be mixed."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what users see and records carry; monotonic time for every duration and deadline."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch. May jump, forwards or backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds from an arbitrary start. Never goes back; comparable within one process only."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000
