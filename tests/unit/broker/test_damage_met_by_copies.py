"""A damaged segment is reported for repair, and not copied; one that is gone meanwhile is no error."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nilometer.broker.tiering.remote_logs import RemoteLogs
from nilometer.broker.tiering.remote_partition import RemotePartition, RemoteTraffic
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.loop import VirtualLoop
from nilometer.simulation.object_store import StoreFaults
from nilometer.storage.errors import CorruptRecordFound
from nilometer.wire.errors import KafkaError
from support.tier.changing_leaders import World


async def filled(loop: VirtualLoop) -> World:
    world = World(loop, 2, is_unclean=False)
    world.bucket.faults = StoreFaults()
    for _ in range(30):
        world.produce(2)
        await world.replicate()
    return world


def damage_first_segment(world: World) -> None:
    file = world.led.disk.open(world.led.log.segments.first.log_path)
    file.write_at(70, b"?")


def test_damage_is_not_copied() -> None:
    async def work() -> None:
        world = await filled(loop)
        damage_first_segment(world)
        with pytest.raises(CorruptRecordFound):
            await world.led.remote.run_round()
        assert [name for name in world.bucket.objects if name.endswith(".log")] == []

    loop = VirtualLoop()
    loop.run_until_complete(work())


def test_a_segment_that_is_truncated_while_it_is_read_is_no_error() -> None:
    async def work() -> None:
        world = await filled(loop)
        upload = RemotePartition._upload

        async def after_a_truncation(self: RemotePartition, sealed: Any) -> Any:
            patch.setattr(RemotePartition, "_upload", upload)
            damage_first_segment(world)
            world.led.manager.truncate_to(world.led.log, 1, wall_ms=world.clock.wall_ms())
            return await upload(self, sealed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RemotePartition, "_upload", after_a_truncation)
            await world.led.remote.run_round()
        assert [name for name in world.bucket.objects if name.endswith(".log")] == []

    loop = VirtualLoop()
    loop.run_until_complete(work())


def test_damage_is_reported_for_repair() -> None:
    found = CorruptRecordFound("/data/t-0/0.log", 0, 0, "CRC")
    reported: list[CorruptRecordFound] = []

    class Replicas:
        damaged = type("Damaged", (), {"report": staticmethod(reported.append)})

    class Remote:
        partition = type("Partition", (), {"key": "t-0"})
        error: str | None = None

        async def run_round(self) -> bool:
            raise found

        def fail(self, error: str) -> None:
            self.error = error

    logs: Any = RemoteLogs.__new__(RemoteLogs)
    logs._running, logs._replicas = {}, Replicas
    remote: Any = Remote()
    asyncio.run(logs._run(remote))
    assert reported == [found]
    assert "CRC" in remote.error


def test_a_disk_that_fails_here_is_no_error_of_remote_storage() -> None:
    """The one that asked says it to the partition; see on_read_error."""
    remote: Any = SimpleNamespace(traffic=RemoteTraffic(), partition="events-0")

    async def fail(error: Exception) -> None:
        raise error

    async def work() -> None:
        logs: Any = RemoteLogs.__new__(RemoteLogs)
        with pytest.raises(OSError, match="the disk"):
            await logs._reading(remote, fail(OSError("the disk")))
        assert remote.traffic.fetch_errors == 0
        with pytest.raises(KafkaError, match="the store"):
            await logs._reading(remote, fail(ObjectStoreError("the store")))
        assert remote.traffic.fetch_errors == 1

    asyncio.run(work())
