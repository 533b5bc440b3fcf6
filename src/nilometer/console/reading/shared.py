"""One reading for several subjects: it is shared while it is under way, and as long as it is fresh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from nilometer.runtime import Clock

T = TypeVar("T")


class Shared(Generic[T]):
    """``fresh_ms``: for how long after its end a reading is used again."""

    def __init__(self, clock: Clock, read: Callable[[], Awaitable[T]], fresh_ms: int) -> None:
        self._clock = clock
        self._read = read
        self._fresh_ms = fresh_ms
        self._task: asyncio.Task[T] | None = None
        self._ended_ms = 0

    async def get(self) -> T:
        """Return a reading, and raise what it raised."""
        if self._task is None or self._is_stale(self._task):
            self._task = asyncio.ensure_future(self._once())
        return await asyncio.shield(self._task)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _is_stale(self, task: asyncio.Task[T]) -> bool:
        if not task.done():
            return False
        failed = task.cancelled() or task.exception() is not None
        return failed or self._clock.monotonic_ms() - self._ended_ms >= self._fresh_ms

    async def _once(self) -> T:
        try:
            return await self._read()
        finally:
            self._ended_ms = self._clock.monotonic_ms()
