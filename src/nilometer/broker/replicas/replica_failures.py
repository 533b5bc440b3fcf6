"""Replicas that cannot be used or trusted: errors of one, its damaged records, and the report of offline ones
to the controller.

Flushes, retention and replication handle an error of one replica here, so that it stays with that replica.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Callable

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.broker.replicas.partition_table import PartitionTable
from nilometer.broker.tasks import describe
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.storage import CorruptRecordFound, Log, LogFenced, TopicPartition
from nilometer.wire.errors import KafkaError

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


class DamagedReplicas:
    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self._reported: set[tuple[str, int]] = set()
        """The damaged positions (path, byte position) that have been reported."""
        self._in_repair: dict[Partition, None] = {}
        """The partitions under repair: they may lead, if no other replica can, but not follow before the
        damaged part of their log is truncated."""
        self._listeners: list[Callable[[Partition, CorruptRecordFound], None]] = []

    def add_listener(self, listener: Callable[[Partition, CorruptRecordFound], None]) -> None:
        """Call ``listener`` with each damage found in a log that is hosted here."""
        self._listeners.append(listener)

    def report(self, found: CorruptRecordFound) -> None:
        """Report damaged records that were found on disk: log an error, and notify the listeners, which begin
        the repair of the partition. Damage at a position that was reported before is ignored."""
        if (found.path, found.position) in self._reported:
            return
        self._reported.add((found.path, found.position))
        logger.error("Damage found: %s", found.message)
        folder = posixpath.dirname(found.path)
        for partition in self._partitions:
            if partition.log.folder == folder:
                for listener in self._listeners:
                    listener(partition, found)
                return

    def begin_repair(self, partition: Partition) -> None:
        """Mark the partition as under repair: it has no role here while another broker leads it, until
        :meth:`ReplicaManager.end_repair`."""
        self._in_repair[partition] = None

    def end_repair(self, partition: Partition) -> None:
        """End the repair: damage found in the partition's log from now on is reported again."""
        self._in_repair.pop(partition, None)
        folder = partition.log.folder
        self._reported = {place for place in self._reported if posixpath.dirname(place[0]) != folder}

    def is_in_repair(self, partition: Partition) -> bool:
        """Whether damaged records were found in the partition's log and are not truncated yet."""
        return partition in self._in_repair


RETRY_S = 0.25
REQUEST_REPLICAS_MAX = 1000


class OfflineReplicas:
    def __init__(self, broker_id: int, link: ControllerLink) -> None:
        self._broker_id = BrokerId(broker_id)
        self._link = link
        self._reasons: dict[TopicIdPartition, str] = {}
        self._unreported: dict[TopicIdPartition, None] = {}
        self._changed = asyncio.Event()
        self._is_reporting = True

    def __contains__(self, key: TopicIdPartition) -> bool:
        return key in self._reasons

    def __len__(self) -> int:
        return len(self._reasons)

    def reason(self, key: TopicIdPartition) -> str:
        """Return why the replica is offline, for operators; empty if it is not."""
        return self._reasons.get(key, "")

    def add(self, key: TopicIdPartition, reason: str) -> None:
        """Mark the replica as offline and report it; an earlier reason stays."""
        if key not in self._reasons:
            self._reasons[key] = reason
            self._unreported[key] = None
            self._changed.set()

    def remove(self, key: TopicIdPartition) -> None:
        """Forget a replica that is no longer assigned to this broker."""
        self._reasons.pop(key, None)
        self._unreported.pop(key, None)

    def stop_reporting(self) -> None:
        """Send no more reports: the broker stops, and the end of its session has the same effect."""
        self._is_reporting = False

    def on_image(self, image: ClusterImage) -> None:
        """Report the offline replicas that ``image`` does not have as offline, and forget those that it no
        longer assigns to this broker. Called when this broker is registered or the image was replaced."""
        for key in list(self._reasons):
            state = image.partition_by_id(*key)
            if state is None or self._broker_id not in state.replicas:
                self.remove(key)
            elif self._broker_id not in state.offline:
                self._unreported[key] = None
                self._changed.set()

    def by_topic(self) -> dict[TopicId, tuple[int, ...]]:
        """Return the offline partitions by topic id, as the broker's registration lists them."""
        found: dict[TopicId, tuple[int, ...]] = {}
        for key in sorted(self._reasons):
            found[key.topic_id] = (*found.get(key.topic_id, ()), key.partition)
        return found

    async def run(self) -> None:
        """Report offline replicas to the controller, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._unreported and self._is_reporting:
                await self._report(list(self._unreported)[:REQUEST_REPLICAS_MAX])

    async def _report(self, keys: list[TopicIdPartition]) -> None:
        try:
            outcomes = await self._link.report_offline(keys)
        except (KafkaError, CoordinationError) as error:
            logger.info("%d offline replicas cannot be reported yet: %s", len(keys), error)
            await asyncio.sleep(RETRY_S)
            return
        is_refused = False
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome.ok:
                self._unreported.pop(key, None)
            elif key in self._unreported:
                is_refused = True
                logger.info(
                    "The controller has not accepted the report of offline replica %s yet: %s",
                    key,
                    outcome.message,
                )
        if is_refused:
            await asyncio.sleep(RETRY_S)
