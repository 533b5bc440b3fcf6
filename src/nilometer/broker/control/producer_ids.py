"""Producer ids for idempotent producers, taken from blocks that the controller allocates to brokers."""

from __future__ import annotations

import asyncio

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.wire.errors import ErrorCode, KafkaError


class ProducerIds:
    """Allocates producer ids from this broker's current block.

    Invariant: an id is allocated only once in a cluster; ids left in a block when the broker stops stay
    unused.
    """

    def __init__(self, link: ControllerLink) -> None:
        self._link = link
        self._next = 0
        self._left = 0
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        """Return a producer id that was never allocated before.

        Raises KafkaError if no new block could be allocated: retriable.
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
