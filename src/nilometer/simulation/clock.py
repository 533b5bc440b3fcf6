"""The clocks of simulated machines, each with its own rate and skew."""

from __future__ import annotations

from dataclasses import dataclass

from nilometer.simulation.loop import VirtualLoop

EPOCH_MS = 1_700_000_000_000
"""The true wall clock time at which every simulation starts."""


@dataclass(slots=True)
class HostClock:
    """A machine's clock.

    ``rate`` is seconds shown per true second; ``skew_ms`` is the error of the wall clock, and may be
    changed at any time: then wall time jumps, monotonic time does not.
    """

    loop: VirtualLoop
    rate: float = 1.0
    skew_ms: int = 0
    boot_ms: int = 0

    def wall_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self.loop.time() * 1000 * self.rate)

    def monotonic_ms(self) -> int:
        return self.boot_ms + int(self.loop.time() * 1000 * self.rate)

    def monotonic_us(self) -> int:
        return self.boot_ms * 1000 + int(self.loop.time() * 1_000_000 * self.rate)

    def thread_cpu_us(self) -> int:
        """Return 0: what code computes takes no time in a simulation."""
        return 0
