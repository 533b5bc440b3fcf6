"""Background jobs of one client: at most one of each name at a time; all are cancelled by :meth:`Jobs.close`.

A job handles every KafkaError itself. Any other exception is a bug and goes to the event loop's exception
handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Jobs:
    def __init__(self, owner: str, on_ended: Callable[[], None]) -> None:
        self._owner = owner
        self._on_ended = on_ended
        self._running: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def start(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start ``job`` as a task, unless one of that name is running or the jobs are closed."""
        if name in self._running or self._closed:
            return
        task = asyncio.create_task(job(), name=f"{self._owner}-{name}")
        self._running[name] = task
        task.add_done_callback(lambda done: self._on_done(name, done))

    async def close(self) -> None:
        self._closed = True
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _on_done(self, name: str, task: asyncio.Task[None]) -> None:
        del self._running[name]
        if not self._closed:
            self._on_ended()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
