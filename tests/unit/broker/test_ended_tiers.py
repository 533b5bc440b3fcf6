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
from nilometer.storage.topic_config import LogConfig
from nilometer.tier import plan
from nilometer.tier.format import Manifest
from nilometer.wire.records import BatchBuilder
from support.tier.changing_leaders import GRACE_MS, World
from support.tier.led_log import CONFIG, LedLog


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
    "end", [replace(CONFIG, remote_storage_enable=False), replace(CONFIG, retention_ms=1)]
)
def test_a_manifest_gives_up_and_forgets_a_few_segments_of_many(
    end: LogConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "GIVEN_UP_AT_ONCE", 2)
    monkeypatch.setattr(plan, "REMOVED_AT_ONCE", 4)

    async def work() -> None:
        led, written = LedLog(), list[tuple[int, int]]()
        for _ in range(5):
            builder = BatchBuilder()
            builder.append(1, None, b"v")
            led.append(bytes(builder.build(0)))
            led.log.roll_now(1)
        await led.tier()
        append = led.remote._chain.append

        async def noting(epoch: int, following: Manifest) -> bool:
            written.append((len(following.segments), len(following.dropped)))
            return await append(epoch, following)

        monkeypatch.setattr(led.remote._chain, "append", noting)
        led.log.configure(end)
        await led.remote.run_round()
        assert written == [(3, 4), (1, 8), (0, 10)]
        del written[:]
        led.now_ms += 10
        await led.remote.run_round()
        assert written == [(0, 6), (0, 2), (0, 0)]
        assert not [name for name in led.store.bucket.objects if name.endswith((".log", ".index"))]

    asyncio.run(work())


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
