"""Clocks that are wrong, each in its own way."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.simulation.loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000
"""When every world begins, by true time."""


@dataclass(slots=True)
class HostClock:
    """What a machine's oscillator and its administrator do to time.

    ``rate`` is seconds shown per true second; ``skew_ms`` is how far the wall clock is off, and may be
    changed at any time: wall time jumps, monotonic time does not.
    """

    loop: VirtualLoop
    rate: float = 1.0
    skew_ms: int = 0
    boot_ms: int = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self.loop.time() * 1000 * self.rate)

    def monotonic_ms(self) -> int:
        return self.boot_ms + int(self.loop.time() * 1000 * self.rate)
