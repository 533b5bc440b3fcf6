"""Waiting for the moment that a crash shall hit: one between two disk calls of a process's offloaded work, or
one while some state of a broker lasts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from nilometer.simulation.host_disk import DiskUser, HostDisk

VERBS = (None, None, "rename", "sync", "remove", "append")
"""The type of call to wait for; None: any."""
CALLS_SKIPPED_MAX = 30
LEFT_S = 0.001
"""How long the work is suspended then, so that a fault can be injected."""
LOOK_S = 0.004
"""How often a state is looked for that lasts for a few round trips."""


async def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until ``condition`` holds; return False if it does not within ``limit_s`` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return False
    return True


async def wait_for_work(disk: HostDisk, name: str, chance: random.Random, limit_s: float) -> bool:
    """Wait until offloaded work of the process ``name`` is between two disk calls, chosen at random.

    Returns False if there was no such moment within ``limit_s`` seconds.
    """
    verb, skipped = chance.choice(VERBS), chance.randrange(CALLS_SKIPPED_MAX)
    reached: asyncio.Future[None] = disk.loop.create_future()

    def on_call(process: DiskUser, called: str, path: str) -> None:
        nonlocal skipped
        if process.name != name or (verb is not None and called != verb) or reached.done():
            return
        skipped -= 1
        if skipped < 0 and disk.loop.job is not None:
            reached.set_result(None)
            disk.loop.job.leave(LEFT_S)

    disk.between_calls.append(on_call)
    try:
        async with asyncio.timeout(limit_s):
            await reached
    except TimeoutError:
        return False
    finally:
        disk.between_calls.remove(on_call)
    return True
