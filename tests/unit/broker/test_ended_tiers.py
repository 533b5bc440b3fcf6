"""What a topic had in remote storage is removed when it is tiered no more, also after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import StoreFaults
from support.tier.changing_leaders import GRACE_MS, World


def test_a_leader_that_has_restarted_removes_what_is_left() -> None:
    async def work() -> None:
        world = World(loop, 2, is_unclean=False)
        world.bucket.faults = StoreFaults()
        for _ in range(40):
            world.produce(2)
            await world.replicate()
        led = world.led
        while await led.remote.run_round():
            pass
        world.clean(led)
        local_start = led.log.local_start_offset
        assert local_start > 0
        led.log.configure(replace(world.config, remote_storage_enable=False))
        world.elect(led.number)
        led.remote = world.remote_of(led)
        await led.remote.run_round()
        assert led.log.log_start_offset == local_start
        await asyncio.sleep(2 * GRACE_MS / 1000)
        await led.remote.run_round()
        await led.remote.run_round()
        assert [name for name in world.bucket.objects if name.endswith((".log", ".index"))] == []
        world.bucket.faults = StoreFaults(is_reachable=False)
        await led.remote.run_round()  # nothing is asked of the store any more

    loop = VirtualLoop()
    loop.run_until_complete(work())


@pytest.mark.parametrize(
    ("is_tiered", "settings", "may_have"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"remote.log.delete.on.disable": "true"}, True),
        (False, {"remote.log.delete.on.disable": "false"}, False),
    ],
)
def test_the_tiers_that_are_looked_at(is_tiered: bool, settings: dict[str, str], may_have: bool) -> None:
    logs: Any = RemoteLogs.__new__(RemoteLogs)
    logs._by_key = {}
    logs._metadata = SimpleNamespace(image=SimpleNamespace(config=lambda kind, name: settings))
    config = SimpleNamespace(remote_storage_enable=is_tiered)
    partition: Any = SimpleNamespace(topic="t", key="t-0", log=SimpleNamespace(config=config))
    assert logs._may_have_tier(partition) is may_have
