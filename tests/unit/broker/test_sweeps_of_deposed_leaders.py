"""A leader looks for what failed copies left: not for what its successor has copied, if it is deposed
meanwhile, and once nothing of a former leader can still be written."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.tiering.remote_partition import RemotePartition
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import StoreFaults, VirtualObjectStore
from support.tier.changing_leaders import GRACE_MS, Clock, World

RECORDS = 12


async def _copy_all(remote: RemotePartition) -> None:
    while await remote.run_round():
        pass


async def _depose_before_the_listing(world: World, patch: pytest.MonkeyPatch) -> None:
    for _ in range(RECORDS):
        world.produce(3)
        await world.replicate()
    former = world.led.remote
    await _copy_all(former)
    await asyncio.sleep(GRACE_MS / 1000)
    listed = VirtualObjectStore.names

    async def names(store: VirtualObjectStore, prefix: str) -> list[str]:
        patch.undo()
        world.elect(1)  # the former leader does not know that yet
        for _ in range(RECORDS):
            world.produce(3)
        await _copy_all(world.led.remote)
        return await listed(store, prefix)

    patch.setattr(VirtualObjectStore, "names", names)
    await former.run_round()
    assert world.led.number == 1
    world.led.high_watermark = world.led.log.log_end_offset
    await world.check()
    last = await world.chain_end()
    assert last is not None
    assert last.leader_epoch == world.epoch
    assert last.objects <= {name.rpartition("/")[2] for name in world.bucket.objects}


def test_what_a_later_leader_has_copied_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()
    loop.run_until_complete(_depose_before_the_listing(World(loop, seed=1, is_unclean=False), monkeypatch))


async def _claim_late(world: World, patch: pytest.MonkeyPatch) -> None:
    for _ in range(RECORDS):
        world.produce(3)
        await world.replicate()
    await _copy_all(world.led.remote)
    world.elect(1)
    remote = world.led.remote

    async def refuse(store: VirtualObjectStore, name: str, data: bytes) -> bool:
        raise ObjectStoreError(f"no answer about {name}")

    with patch.context() as failing:
        failing.setattr(VirtualObjectStore, "create", refuse)
        with pytest.raises(ObjectStoreError):
            await remote.run_round()
        await asyncio.sleep(GRACE_MS / 1000)
    world.bucket.faults = StoreFaults()
    upload = (
        f"{remote.folder}{0:020d}-former.log"  # by the former leader, which could still name it until now
    )
    world.bucket.write(upload, b"")
    await _copy_all(remote)
    assert upload in world.bucket.objects
    await asyncio.sleep(GRACE_MS / 1000)
    await _copy_all(remote)
    assert upload not in world.bucket.objects


async def _step_back(world: World, patch: pytest.MonkeyPatch) -> None:
    for _ in range(RECORDS):
        world.produce(3)
        await world.replicate()
    remote = world.led.remote
    await _copy_all(remote)
    orphan = f"{remote.folder}{0:020d}-failed.log"
    world.bucket.write(orphan, b"")
    patch.setattr(Clock, "wall_ms", lambda self: 0)
    await asyncio.sleep(GRACE_MS / 1000)
    await _copy_all(remote)
    assert orphan not in world.bucket.objects


def test_a_wall_clock_that_steps_back_does_not_keep_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()
    loop.run_until_complete(_step_back(World(loop, seed=1, is_unclean=False), monkeypatch))


def test_what_a_former_leader_has_copied_is_looked_for_a_grace_period_after_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = VirtualLoop()
    loop.run_until_complete(_claim_late(World(loop, seed=1, is_unclean=False), monkeypatch))
