"""Reading the records in batches for requests: step by step on the disk's threads, beside the event loop.

Between two steps the event loop has its turn, so that nothing here keeps it waiting for longer than a step.
One step runs at a time, and those who read take turns: with several threads in Python code, the event loop
would wait for the interpreter's lock as many times as long.

What readers hold together is bounded: :data:`READERS_MAX` batches, each with at most :data:`SMALL_BYTES` of
it decompressed, and one that has more. The others wait: of one origin few are read at once, and origins take
turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import TypeVar

from nilometer.broker.connection import Origin
from nilometer.broker.rooms import Room
from nilometer.broker.tasks import run_to_end
from nilometer.runtime import Disk

T = TypeVar("T")

READERS_MAX = 8
"""How many batches are read at once."""
SMALL_BYTES = 8 << 20
"""What a batch may have decompressed while others do the same. A codec looks back on no more than it has
decompressed, and at most on 128 MiB (zstd)."""


class RecordReading:
    """All methods are called on the event loop."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._readers = Room(READERS_MAX)
        self._large = asyncio.Lock()
        self._turn = asyncio.Lock()

    async def run(self, origin: Origin, steps: Generator[int, None, T]) -> T:
        """Run ``steps``, which yield how many bytes of a batch are decompressed; return what they return.
        ``origin``: for whose request.

        Raises what they raise.
        """
        try:
            async with AsyncExitStack() as held:
                await self._readers.enter(origin, 1)
                held.callback(self._readers.leave, origin, 1)
                is_large = False
                while True:
                    async with self._turn:
                        ended, outcome = await self._step(steps)
                    if ended is not None:
                        return ended.value
                    if outcome > SMALL_BYTES and not is_large:
                        await held.enter_async_context(self._large)
                        is_large = True
        finally:
            steps.close()

    async def _step(self, steps: Generator[int, None, T]) -> tuple[StopIteration | None, int]:
        """Take one step; if cancelled, wait until it has ended."""

        def step() -> tuple[StopIteration | None, int]:
            try:
                return None, next(steps)
            except StopIteration as ended:  # which a future cannot hold
                return ended, 0

        return await run_to_end(self._disk.offload(step))
