"""How the broker's services (flushes, retention, replication, …) handle an error of one replica.

A service works for all replicas of the broker in turn. An error of one replica is handled here, so that the
service continues for the others:

- the disk failed (OSError, or a log fenced by one): the log directory is taken offline;
- an invariant is broken (AssertionError): the replica is fenced, since continuing would spread the damage;
- anything else: the work has failed for this one replica. It is tried again later, and until it succeeds
  DescribeReplicas shows the failure. The first failure is logged, and after that only a different error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.tasks import describe
from nilometer.storage import Log, LogFenced, TopicPartition

logger = logging.getLogger("nilometer.broker.replicas")


class ReplicaFenced(OSError):
    """The reason of a log that is fenced because an invariant of its replica was broken, not its disk."""


class ReplicaFailures:
    """Keeps which work currently fails for which replica of this broker."""

    def __init__(self, on_log_failure: Callable[[Log, OSError], None]) -> None:
        """``on_log_failure`` takes the log's directory offline, if the log is still in use."""
        self._on_log_failure = on_log_failure
        self._failing: dict[TopicPartition, dict[str, str]] = {}

    @property
    def are_any(self) -> bool:
        """Whether any work fails for any replica: usually false, so that success costs nothing."""
        return bool(self._failing)

    def on_failure(self, partition: Partition, work: str, error: Exception) -> None:
        """Handle that ``work`` (a noun such as "retention") failed for ``partition`` with ``error``."""
        if isinstance(error, LogFenced | OSError):
            self.disk_failed(partition, error)
            return
        if isinstance(error, AssertionError):
            partition.fence(error)
            return
        failing = self._failing.setdefault(partition.log.topic_partition, {})
        text = describe(error)
        if failing.get(work) != text:
            failing[work] = text
            logger.error(
                "The %s of %s failed and will be tried again", work, partition.log.name, exc_info=error
            )

    def disk_failed(self, partition: Partition, error: OSError | LogFenced) -> None:
        """Fence the partition's log and take its whole log directory offline, since it is on one disk."""
        reason = error.reason if isinstance(error, LogFenced) else error
        if isinstance(reason, ReplicaFenced):
            return  # no disk failed
        partition.log.fence(reason)
        self._on_log_failure(partition.log, reason)

    def on_success(self, partition: Partition, work: str) -> None:
        """Note that ``work`` succeeded for ``partition``: an earlier failure of it is over."""
        failing = self._failing.get(partition.log.topic_partition)
        if failing is not None and failing.pop(work, None) is not None:
            logger.info("The %s of %s succeeds again", work, partition.log.name)
            if not failing:
                del self._failing[partition.log.topic_partition]

    def forget(self, name: TopicPartition) -> None:
        """Drop the failures of a replica that is not hosted any more."""
        self._failing.pop(name, None)

    def failures_of(self, name: TopicPartition) -> tuple[str, ...]:
        """Return the current failures of the replica, as texts for operators."""
        return tuple(f"{work}: {error}" for work, error in self._failing.get(name, {}).items())
