"""Producer ids for idempotent producers, taken from blocks that the controller allocates to brokers."""

from __future__ import annotations

import asyncio

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.wire.errors import ErrorCode, KafkaError


class ProducerIds:
    """Invariant: an id is allocated only once in a cluster; the rest of an unfinished block is never
    used.
    """

    def __init__(self, link: ControllerLink) -> None:
        self._link = link
        self._next = 0
        self._left = 0
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        """A producer id that was never allocated before.

        Raises KafkaError (COORDINATOR_LOAD_IN_PROGRESS: ask again).
        """
        if not self._left:
            async with self._refilling:
                if not self._left:
                    await self._refill()
        self._left -= 1
        self._next += 1
        return self._next - 1

    async def _refill(self) -> None:
        block = await self._link.allocate_producer_ids()
        if not block.outcome.ok:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, block.outcome.message or "")
        self._next, self._left = block.first, block.count
