"""The signal of changes: a number that only increases, and tasks that wait for an increase.

Invariant: a task that got value v, then read the state, and waits with v, is woken by any later change.
"""

from __future__ import annotations

import asyncio

from nilometer.coordination.store import StoreUnavailable


class ChangeSignal:
    def __init__(self) -> None:
        self._value = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._closed = False

    def notify(self) -> None:
        self._value += 1
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def wait(self, seen: int) -> int:
        while self._value == seen and not self._closed:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._waiters:  # cancelled before it was woken
                    self._waiters.remove(waiter)
        if self._closed:
            raise StoreUnavailable("the coordination store was closed")
        return self._value

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
