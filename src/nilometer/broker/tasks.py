"""The broker's background tasks: kept alive, failures never silent, all ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker")


class Tasks:
    def __init__(self) -> None:
        self._tasks: dict[
            asyncio.Task[Any], None
        ] = {}  # ordered, so that they end in the same order in replay

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run ``work``; who awaits the task gets its outcome.

        A named task is a service: its failure is logged.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._service_done if name else self._forget)
        return task

    async def stop(self) -> None:
        """Cancel everything and wait until it has ended."""
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for task in tasks:
                self._tasks.pop(task, None)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def _service_done(self, task: asyncio.Task[Any]) -> None:
        self._forget(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
