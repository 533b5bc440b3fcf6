"""Sends the partitions' AlterPartition requests to the controller, many in one request.

``replication`` decides which ISR to request and what a response means. Partitions' requests made while one is
in flight are sent together with the next one. If no response comes, the partitions are notified and try again
later. An error while one partition processes its response concerns that partition alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nilometer.broker.control.controller_link import AlterPartitionAnswers, ControllerLink
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.tasks import Tasks
from nilometer.coordination.store import CoordinationError
from nilometer.replication import AlterPartition, AlterPartitionAnswer
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.replicas")

RETRY_S = 0.05
REQUEST_PARTITIONS_MAX = 1000
_NO_ANSWER = AlterPartitionAnswer(error=ErrorCode.request_timed_out)


class IsrRequests:
    def __init__(self, link: ControllerLink, tasks: Tasks, failures: ReplicaFailures) -> None:
        self._link = link
        self._tasks = tasks
        self._failures = failures
        self._waiting: dict[Partition, AlterPartition] = {}
        self._sending: asyncio.Task[None] | None = None
        self.failed = 0
        """How many changes of an ISR the controller has rejected, or not answered."""

    def send(self, partition: Partition, request: AlterPartition) -> None:
        """Send ``request`` with the next AlterPartition; it replaces an earlier request of the partition that
        has not been sent yet."""
        self._waiting[partition] = request
        if self._sending is None:
            self._sending = self._tasks.service("ISR requests", self._send_all())

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                broker_epoch, batch = self._next_batch()
                answers = await self._ask(broker_epoch, batch)
                unanswered = False
                for partition, request in batch.items():
                    answer = answers.get(partition.key, _NO_ANSWER)
                    unanswered = unanswered or answer is _NO_ANSWER
                    self.failed += answer.error is not ErrorCode.none
                    self._guard(partition, partition.on_alter_partition_answer, request, answer)
                if unanswered:
                    await asyncio.sleep(RETRY_S)
                    for partition in batch:
                        self._guard(partition, partition.tick)
        finally:
            self._sending = None

    def _guard(self, partition: Partition, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self._failures.on_failure(partition, "change of the ISR", error)

    def _next_batch(self) -> tuple[int, dict[Partition, AlterPartition]]:
        """Take requests that have the same broker epoch; return that epoch and the requests."""
        broker_epoch = next(iter(self._waiting.values())).broker_epoch
        batch: dict[Partition, AlterPartition] = {}
        for partition, request in list(self._waiting.items()):
            if request.broker_epoch == broker_epoch and len(batch) < REQUEST_PARTITIONS_MAX:
                batch[partition] = self._waiting.pop(partition)
        return broker_epoch, batch

    async def _ask(self, broker_epoch: int, batch: dict[Partition, AlterPartition]) -> AlterPartitionAnswers:
        requests = [(partition.key, request) for partition, request in batch.items()]
        try:
            return await self._link.alter_partitions(broker_epoch, requests)
        except (KafkaError, CoordinationError) as error:
            logger.info("AlterPartition for %d partitions failed: %s", len(batch), error)
            return {}
