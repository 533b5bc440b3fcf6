"""Group commit: the logs that want a flush are flushed together, away from the event loop.

While one commit is under way, logs that want the next gather; so the slower the device, the more records
share an fsync. An error fences the log whose flush failed, and nobody waiting on it is acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nilometer.broker.replicas.partition import Partition
from nilometer.broker.tasks import Tasks
from nilometer.runtime import Runtime
from nilometer.storage import FlushPlan

logger = logging.getLogger("nilometer.broker")


class GroupCommit:
    def __init__(
        self, runtime: Runtime, tasks: Tasks, on_failure: Callable[[Partition, OSError], None]
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._on_failure = on_failure
        self._wanting: dict[Partition, None] = {}
        self._committing: asyncio.Task[None] | None = None

    def request(self, partition: Partition) -> None:
        """Have the log of ``partition`` flushed up to its present end; it hears ``on_flushed``."""
        self._wanting[partition] = None
        if self._committing is None:
            self._committing = self._tasks.spawn(self._commit(), name="group commit")

    async def _commit(self) -> None:
        try:
            while self._wanting:
                partitions, self._wanting = list(self._wanting), {}
                plans = [(partition, partition.log.flush_plan()) for partition in partitions]
                failures = await self._runtime.disk.offload(lambda plans=plans: _run(plans))
                for (partition, plan), failure in zip(plans, failures, strict=True):
                    if failure is not None:
                        self._on_failure(partition, failure)
                    else:
                        partition.log.mark_flushed(plan, wall_ms=self._runtime.clock.wall_ms())
                        partition.on_flushed()
        finally:
            self._committing = None


def _run(plans: list[tuple[Partition, FlushPlan]]) -> list[OSError | None]:
    failures: list[OSError | None] = []
    for _, plan in plans:
        try:
            plan.run()
            failures.append(None)
        except OSError as error:
            failures.append(error)
    return failures
