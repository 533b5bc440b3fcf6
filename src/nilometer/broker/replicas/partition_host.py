"""The services of the broker that a partition uses: flushes, truncation, ISR requests, failures."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Protocol

from nilometer.broker.control.membership import OwnSession
from nilometer.broker.replicas.file_work import CheckpointWriter, GroupCommit, LogDisposal
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.isr_changes import IsrLog, IsrRequests
from nilometer.broker.replicas.readable_partition import Liveness
from nilometer.broker.replicas.replica_failures import ReplicaFailures
from nilometer.broker.replicas.replica_fetchers import ReplicaFetchers
from nilometer.replication import AlterPartition
from nilometer.runtime import Clock, Runtime
from nilometer.storage import LogFenced, Truncation
from nilometer.storage.directories.log_manager import LogManager

logger = logging.getLogger("nilometer.broker.replicas")


class PartitionHost(Liveness, Protocol):
    """The services of the broker that a partition uses."""

    clock: Clock
    isr_log: IsrLog

    def request_flush(self, partition: Partition) -> None:
        """Flush the partition's log with the next group commit."""
        ...

    def flushed(self, partition: Partition) -> None:
        """Let the partition, whose log has been flushed, fetch again if it is a follower."""
        ...

    def send_alter_partition(self, partition: Partition, request: AlterPartition) -> None: ...

    def truncate_to(self, partition: Partition, offset: int) -> None: ...

    def truncate_fully_and_start_at(self, partition: Partition, offset: int) -> None: ...

    def log_failed(self, partition: Partition, reason: LogFenced) -> None: ...

    def read_failed(self, partition: Partition, error: OSError) -> None:
        """Take the log directory offline as :meth:`log_failed` does, but after this call has returned.

        No role changes before that. If the process has run out of file descriptors, the disk has not failed
        and nothing goes offline.
        """
        ...


class LocalPartitionHost:
    def __init__(
        self,
        runtime: Runtime,
        session: OwnSession,
        logs: LogManager,
        disposal: LogDisposal,
        commit: GroupCommit,
        isr_requests: IsrRequests,
        fetchers: ReplicaFetchers,
        checkpoints: CheckpointWriter,
        failures: ReplicaFailures,
    ) -> None:
        self.clock = runtime.clock
        self.is_live = session.is_live
        self._logs = logs
        self._disposal = disposal
        self._commit = commit
        self._isr_requests = isr_requests
        self._fetchers = fetchers
        self._failures = failures
        self._checkpoints = checkpoints
        self.isr_log = IsrLog()

    def request_flush(self, partition: Partition) -> None:
        self._commit.request(partition)

    def flushed(self, partition: Partition) -> None:
        self._fetchers.resume(partition)

    def send_alter_partition(self, partition: Partition, request: AlterPartition) -> None:
        self.isr_log.note_request(partition, request, self.clock.monotonic_ms())
        self._isr_requests.send(partition, request)

    def truncate_to(self, partition: Partition, offset: int) -> None:
        before = partition.log.log_end_offset
        self.cut(partition, offset)
        if partition.log.log_end_offset < before:  # else only leader epochs without records were removed
            logger.info(
                "%s is truncated from offset %d to %d, where its log and its leader's diverge",
                partition,
                before,
                partition.log.log_end_offset,
            )

    def cut(self, partition: Partition, offset: int) -> None:
        """Remove the records at or above ``offset``, for whatever reason; the caller logs it."""
        truncation = self._logs.truncate_to(partition.log, offset, wall_ms=self.clock.wall_ms())
        self._dispose(partition, truncation)

    def truncate_fully_and_start_at(self, partition: Partition, offset: int) -> None:
        log, wall_ms = partition.log, self.clock.wall_ms()
        start, end = log.log_start_offset, log.log_end_offset
        self._dispose(partition, self._logs.truncate_fully_and_start_at(log, offset, wall_ms=wall_ms))
        if start < end:
            logger.info(
                "%s starts again at offset %d: its leader has none of its records from %d to %d",
                partition,
                offset,
                start,
                end - 1,
            )

    def log_failed(self, partition: Partition, reason: LogFenced) -> None:
        """Take the whole log directory offline after a failed write, since it is on one disk."""
        self._failures.disk_failed(partition, reason)

    def read_failed(self, partition: Partition, error: OSError) -> None:
        """Take the log directory offline in the next step of the event loop.

        Not at once: the caller is in the middle of a read, and requests that wait for the partition would get
        their responses during it.
        """
        if error.errno in (errno.EMFILE, errno.ENFILE):
            logger.error("%s cannot be read now: %s", partition, error)
            return
        asyncio.get_running_loop().call_soon(self._failures.disk_failed, partition, error)

    def _dispose(self, partition: Partition, truncation: Truncation) -> None:
        self._disposal.remove_files(truncation.removable, partition.log.config.file_delete_delay_ms)
        log = partition.log
        if log.awaits_checkpoint:
            written = self._checkpoints.request(self._logs.directory_of(log.topic_partition))
            written.add_done_callback(lambda _: self._fetchers.resume(partition))
