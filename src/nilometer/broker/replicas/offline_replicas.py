"""Replicas that this broker should have but cannot use, and their way into the cluster's metadata.

A replica goes offline when its log directory fails, when its log cannot be opened, or when it is fenced
because an invariant was broken. It stays so until the broker starts again: there is no log for it in another
directory meanwhile, since the old one may come back. The controller is asked to note it (ForfeitReplicas),
again and again until the metadata log says so; leadership moves with that, and the replica leaves the ISR.

Invariant: a replica in here is not hosted (:mod:`nilometer.broker.replicas.replica_manager`).
"""

from __future__ import annotations

import asyncio
import logging

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.cluster.identifiers import BrokerId, TopicId, TopicIdPartition
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.broker")

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

    def reason(self, key: TopicIdPartition) -> str:
        """For people; empty for a replica that is not offline."""
        return self._reasons.get(key, "")

    def add(self, key: TopicIdPartition, reason: str) -> None:
        """The replica cannot be used from now on. The first reason stays."""
        if key not in self._reasons:
            self._reasons[key] = reason
            self._unreported[key] = None
            self._changed.set()

    def remove(self, key: TopicIdPartition) -> None:
        """This broker need not have the replica any more."""
        self._reasons.pop(key, None)
        self._unreported.pop(key, None)

    def stop_reporting(self) -> None:
        """The broker ends, and the end of its session says more than any report."""
        self._is_reporting = False

    def on_image(self, image: ClusterImage) -> None:
        """This broker is registered, or the image was replaced: report what it does not say."""
        for key in list(self._reasons):
            state = image.partition_by_id(*key)
            if state is None or self._broker_id not in state.replicas:
                self.remove(key)
            elif self._broker_id not in state.offline:
                self._unreported[key] = None
                self._changed.set()

    def by_topic(self) -> dict[TopicId, tuple[int, ...]]:
        """As a registration says it."""
        found: dict[TopicId, tuple[int, ...]] = {}
        for key in sorted(self._reasons):
            found[key.topic_id] = (*found.get(key.topic_id, ()), key.partition)
        return found

    async def run(self) -> None:
        """Report to the controller whatever is to be reported. A service of the broker."""
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
                logger.info("The offline replica %s is not noted yet: %s", key, outcome.message)
        if is_refused:
            await asyncio.sleep(RETRY_S)
