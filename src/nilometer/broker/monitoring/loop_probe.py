"""Measures how late the event loop runs what is due: the time that other work made it wait.

A timer is set, and its delay beyond the time it was set for is counted. All requests of a broker share one
event loop, so each waits about as long.
"""

from __future__ import annotations

import asyncio

from nilometer.metrics.distribution import Distribution
from nilometer.runtime import Clock

INTERVAL_MS = 100


class LoopProbe:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lag = Distribution()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            due_us = self._clock.monotonic_us() + INTERVAL_MS * 1000
            await asyncio.sleep(INTERVAL_MS / 1000)
            now_us = self._clock.monotonic_us()
            self.lag.observe(max(0, now_us - due_us), now_us)
