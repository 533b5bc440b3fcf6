"""The clock: wall time and monotonic time, which must not be mixed."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time, for timestamps that users see; monotonic time, for durations and deadlines."""

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch. May jump forwards or backwards."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds from an arbitrary start.

        Never decreases; comparable within one process only.
        """
        ...

    def monotonic_us(self) -> int:
        """Return the time of :meth:`monotonic_ms` in microseconds, for short durations."""
        ...

    def thread_cpu_us(self) -> int:
        """Return the processor time that the calling thread has used, in microseconds."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

    def thread_cpu_us(self) -> int:
        return time.thread_time_ns() // 1_000
