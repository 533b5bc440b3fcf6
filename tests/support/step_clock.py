"""A clock for tests that must not depend on how fast the machine is."""

from __future__ import annotations


class StepClock:
    """Time and processor time move when the test says so."""

    def __init__(self) -> None:
        self.us = self.cpu_us = 0

    def work(self, us: int) -> None:
        """Let processor time pass, and as much time."""
        self.us += us
        self.cpu_us += us

    def wall_ms(self) -> int:
        return self.us // 1000

    def monotonic_ms(self) -> int:
        return self.us // 1000

    def monotonic_us(self) -> int:
        return self.us

    def thread_cpu_us(self) -> int:
        return self.cpu_us
