"""Replicas that this broker should have but cannot use, and their report to the controller.

A replica goes offline when its log directory fails, when its log cannot be opened, or when it is fenced
because an invariant was broken. It stays offline until the broker starts again: no log for it is created in
another directory meanwhile, since the old one may return. The replica is reported to the controller
(ForfeitReplicas) until the metadata log has it as offline; then leadership moves, and the replica leaves the
ISR.

Invariant: an offline replica is not hosted (:mod:`nilometer.broker.replicas.replica_manager`).
"""

from __future__ import annotations

import asyncio
import logging

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.broker.replicas")

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
