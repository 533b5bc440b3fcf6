"""Copies to remote storage, and reads from there, keep to their bytes a second in the mean."""

from __future__ import annotations

import asyncio
from typing import Any

from nilometer.broker.tiering.remote_logs import Bandwidth
from nilometer.simulation.loop import VirtualLoop
from support.tier.changing_leaders import Clock

MEGABYTE = 1_000_000


def seconds_for(megabytes: int, rate: int) -> float:
    async def work() -> float:
        clock: Any = Clock(loop)
        bandwidth = Bandwidth(clock, rate)
        began = loop.time()
        await asyncio.gather(*(copy(bandwidth, megabytes // 2) for _ in range(2)))
        return loop.time() - began

    async def copy(bandwidth: Bandwidth, count: int) -> None:
        for _ in range(count):
            await bandwidth.wait(MEGABYTE)

    loop = VirtualLoop()
    return loop.run_until_complete(work())


def test_transfers_take_as_long_as_their_limit_says() -> None:
    assert seconds_for(10, MEGABYTE) == 0, "a burst"
    assert 85 <= seconds_for(100, MEGABYTE) <= 100
    assert 35 <= seconds_for(100, 2 * MEGABYTE) <= 50
    assert seconds_for(1_000, (1 << 63) - 1) == 0


def test_who_waits_notices_that_the_limit_is_another_one() -> None:
    async def work() -> float:
        clock: Any = Clock(loop)
        bandwidth = Bandwidth(clock, 1)
        waiting = asyncio.create_task(bandwidth.wait(MEGABYTE))
        await asyncio.sleep(60)
        bandwidth.bytes_per_second = MEGABYTE
        began = loop.time()
        await waiting
        return loop.time() - began

    loop = VirtualLoop()
    assert loop.run_until_complete(work()) < 3
