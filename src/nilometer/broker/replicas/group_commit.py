"""Group commit: the logs that need a flush are flushed together, off the event loop.

Logs that need a flush while a commit is in progress are flushed by the next one; so the slower the device,
the more records share an fsync. An error concerns only the log whose flush failed: no request that waits for
that log is acknowledged, but the requests that wait for the other logs are.
"""

from __future__ import annotations

import asyncio
import logging

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.tasks import Tasks
from nilometer.metrics import Distribution
from nilometer.runtime import Runtime
from nilometer.storage import FlushPlan

logger = logging.getLogger("nilometer.broker.replicas")


RETRY_S = 1.0
"""The delay before a flush is tried again that failed for another reason than its disk."""
_WORK = "flush"


class GroupCommit:
    def __init__(self, runtime: Runtime, tasks: Tasks, failures: ReplicaFailures) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._failures = failures
        self._wanting: dict[Partition, None] = {}
        self._committing: asyncio.Task[None] | None = None
        self.durations = Distribution()
        """How long commits took, until all their logs were synced."""
        self.logs_flushed = 0

    def request(self, partition: Partition) -> None:
        """Flush the log of ``partition`` up to its current end, then call its ``on_flushed``."""
        self._wanting[partition] = None
        if self._committing is None:
            self._committing = self._tasks.service("group commit", self._commit())

    async def _commit(self) -> None:
        try:
            while self._wanting:
                partitions, self._wanting = list(self._wanting), {}
                plans = self._plan(partitions)
                began_us = self._runtime.clock.monotonic_us()
                outcomes = await self._runtime.disk.offload(lambda plans=plans: _run(plans))
                now_us = self._runtime.clock.monotonic_us()
                self.durations.observe(now_us - began_us, now_us)
                self.logs_flushed += outcomes.count(None)
                for (partition, plan), failure in zip(plans, outcomes, strict=True):
                    if failure is not None:
                        self._fail(partition, failure)
                    else:
                        self._note_flushed(partition, plan)
        finally:
            self._committing = None

    def _plan(self, partitions: list[Partition]) -> list[tuple[Partition, FlushPlan]]:
        plans: list[tuple[Partition, FlushPlan]] = []
        for partition in partitions:
            try:
                plans.append((partition, partition.log.flush_plan()))
            except Exception as error:
                self._fail(partition, error)
        return plans

    def _note_flushed(self, partition: Partition, plan: FlushPlan) -> None:
        try:
            partition.log.mark_flushed(plan, wall_ms=self._runtime.clock.wall_ms())
            partition.on_flushed()
        except Exception as error:
            self._fail(partition, error)
        else:
            if self._failures.are_any:
                self._failures.on_success(partition, _WORK)

    def _fail(self, partition: Partition, error: Exception) -> None:
        if isinstance(error, OSError):
            logger.error("Flushing %s failed: %s", partition, error)
        self._failures.on_failure(partition, _WORK, error)
        if partition.log.failure is None:
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, partition)

    def _retry(self, partition: Partition) -> None:
        if not self._tasks.is_stopping and partition.log.failure is None:
            self.request(partition)


def _run(plans: list[tuple[Partition, FlushPlan]]) -> list[Exception | None]:
    outcomes: list[Exception | None] = []
    for _, plan in plans:
        try:
            plan.run()
            outcomes.append(None)
        except Exception as error:
            outcomes.append(error)
    return outcomes
