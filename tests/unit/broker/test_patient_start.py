"""A broker starts although the first answers of the coordination store fail."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.control.membership import retry_while_starting
from nilometer.coordination.store import StoreRefused, StoreUnavailable
from nilometer.runtime import Clock


class StepClock(Clock):
    """A second passes with each look."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        self.now_ms += 1000
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.monotonic_ms() * 1000

    def thread_cpu_us(self) -> int:
        return 0


class Store:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


def test_what_fails_for_a_moment_is_asked_again() -> None:
    store = Store(StoreUnavailable("ConnectionLoss"))
    assert asyncio.run(retry_while_starting(StepClock(), 1500, store.ask)) == "answer"
    assert store.asked == 2


def test_a_store_that_stays_away_and_one_that_refuses_end_the_start() -> None:
    away = Store(*[StoreUnavailable("ConnectionLoss")] * 100)
    with pytest.raises(StoreUnavailable):
        asyncio.run(retry_while_starting(StepClock(), 3_000, away.ask))
    assert away.asked == 3
    refusing = Store(StoreRefused("another cluster's"))
    with pytest.raises(StoreRefused):
        asyncio.run(retry_while_starting(StepClock(), 3_000, refusing.ask))
    assert refusing.asked == 1
