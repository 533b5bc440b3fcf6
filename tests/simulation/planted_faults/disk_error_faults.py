"""Faults in the handling of one failed log directory or replica, while the broker goes on with others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker import tasks
from nilometer.broker.housekeeping import Housekeeping
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.tasks import Service, Tasks, describe
from nilometer.simulation.fault_kinds import Kind
from nilometer.storage.log import Log

logger = logging.getLogger("nilometer.broker")

DELETED_SOON = {"segment_bytes": 1_000, "segment_ms": 3_000, "retention_bytes": 2_000}
"""So that retention uses the disk often: it is to meet the error before others do."""
SETTINGS = {
    "log.retention.check.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
}


def end_services_in_silence(patch: Patch) -> None:
    async def for_each(
        self: Housekeeping, partitions: Iterable[Partition], what: str, work: Callable[[Partition], object]
    ) -> None:
        for partition in list(partitions):
            work(partition)

    def done(self: Tasks, service: Service, task: asyncio.Task[None]) -> None:
        self._forget(task)
        service.is_alive = False
        if not task.cancelled() and (error := task.exception()) is not None:
            service.last_failure = describe(error)

    patch.setattr(Housekeeping, "_for_each", for_each)
    patch.setattr(Tasks, "_service_done", done)
    patch.setattr(tasks, "FAILED_ROUNDS_MAX", 1)


def retry_disk_errors(patch: Patch) -> None:
    def on_failure(self: ReplicaFailures, log: Log, work: str, error: Exception) -> None:
        logger.error("The %s of %s failed and will be tried again", work, log.name, exc_info=error)

    patch.setattr(ReplicaFailures, "on_failure", on_failure)


def keep_broken_replicas(patch: Patch) -> None:
    patch.setattr(ReplicaManager, "fence", lambda self, partition, broken: None)


FAULTS = (
    PlantedFault(
        name="end-services-in-silence",
        what="retention of all logs ends with the error of one, and the broker goes on",
        plant=end_services_in_silence,
        kinds=(Kind.DISK_ERROR,),
        seeds=10,
        folders=(2, 3),
        deletes=DELETED_SOON,
        settings=SETTINGS,
    ),
    PlantedFault(
        name="retry-disk-errors",
        what="a service that meets the error of a log directory tries again, and leaves it in use",
        plant=retry_disk_errors,
        kinds=(Kind.DISK_ERROR,),
        seeds=10,
        folders=(2, 3),
        deletes=DELETED_SOON,
        settings=SETTINGS,
    ),
    PlantedFault(
        name="keep-broken-replicas",
        what="a replica with a broken invariant keeps its role",
        plant=keep_broken_replicas,
        kinds=(Kind.INVARIANT,),
        seeds=5,
    ),
)
