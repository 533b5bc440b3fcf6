"""Replicas that cannot be used: errors of one, and the report of offline ones to the controller.

Flushes, retention and replication handle an error of one replica here, so that it stays with that replica.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.tasks import describe
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.storage.errors import LogFenced
from nilometer.storage.log import Log
from nilometer.storage.names import TopicPartition
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

    def on_failure(self, log: Log, work: str, error: Exception) -> None:
        """Handle that ``work`` (a noun such as "retention") failed for the replica with ``log``."""
        if isinstance(error, LogFenced | OSError):
            self.disk_failed(log, error)
            return
        failing = self._failing.setdefault(log.topic_partition, {})
        text = describe(error)
        if failing.get(work) != text:
            failing[work] = text
            logger.error("The %s of %s failed and will be tried again", work, log.name, exc_info=error)

    def disk_failed(self, log: Log, error: OSError | LogFenced) -> None:
        """Fence the log and take its whole log directory offline, since it is on one disk."""
        reason = error.reason if isinstance(error, LogFenced) else error
        if isinstance(reason, ReplicaFenced):
            return  # no disk failed
        log.fence(reason)
        self._on_log_failure(log, reason)

    def read_failed(self, log: Log, error: OSError) -> None:
        """Take the log directory offline as :meth:`disk_failed` does, in the next step of the event loop.

        Not at once: the caller is in the middle of a read, and requests that wait for the partition would get
        their responses during it. If the process has run out of file descriptors, the disk has not failed and
        nothing goes offline.
        """
        if error.errno in (errno.EMFILE, errno.ENFILE):
            logger.error("%s cannot be read now: %s", log.topic_partition, error)
            return
        asyncio.get_running_loop().call_soon(self.disk_failed, log, error)

    def on_success(self, log: Log, work: str) -> None:
        """Note that ``work`` succeeded for the replica with ``log``: an earlier failure of it is over."""
        if not self._failing:
            return  # as usual: success costs nothing
        failing = self._failing.get(log.topic_partition)
        if failing is not None and failing.pop(work, None) is not None:
            logger.info("The %s of %s succeeds again", work, log.name)
            if not failing:
                del self._failing[log.topic_partition]

    def forget(self, name: TopicPartition) -> None:
        """Drop the failures of a replica that is not hosted any more."""
        self._failing.pop(name, None)

    def failures_of(self, name: TopicPartition) -> tuple[str, ...]:
        """Return the current failures of the replica, as texts for operators."""
        failing = self._failing.get(name)
        return tuple(f"{work}: {error}" for work, error in failing.items()) if failing else ()


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
