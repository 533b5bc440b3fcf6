"""Which producer id does the next idempotent producer get?

:class:`ProducerIds` takes them from blocks that the controller allocates to brokers.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.control.controller_link import ControllerLink
from nilometer.broker.tasks import Tasks
from nilometer.wire.errors import ErrorCode, KafkaError

BLOCK_WAIT_MS = 1_000
"""So long a producer waits here for a block of producer ids: another broker may reach the controller."""


class ProducerIds:
    """Allocates producer ids from this broker's current block.

    Invariant: an id is allocated only once in a cluster; ids left in a block when the broker stops stay
    unused.
    """

    def __init__(self, link: ControllerLink, tasks: Tasks) -> None:
        self._link = link
        self._tasks = tasks
        self._next = 0
        self._left = 0
        self._refilling: asyncio.Task[None] | None = None

    async def next(self) -> int:
        """Return a producer id that was never allocated before.

        Raises KafkaError if no new block could be allocated within ``BLOCK_WAIT_MS``: retriable. A block that
        comes later is kept for the next who asks.
        """
        while not self._left:
            if self._refilling is None:
                self._refilling = self._tasks.spawn(self._refill())
            refilling = self._refilling
            done, _ = await asyncio.wait([refilling], timeout=BLOCK_WAIT_MS / 1000)
            if not done:
                raise KafkaError(ErrorCode.coordinator_load_in_progress, "the controller does not respond")
            if self._refilling is refilling:
                self._refilling = None
            refilling.result()
        self._left -= 1
        self._next += 1
        return self._next - 1

    async def _refill(self) -> None:
        block = await self._link.allocate_producer_ids()
        if not block.outcome.ok:
            raise KafkaError(ErrorCode.coordinator_load_in_progress, block.outcome.message or "")
        self._next, self._left = block.first, block.count
