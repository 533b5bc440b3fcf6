"""The broker as it is shipped, three times, in the virtual world: nothing is replaced but the runtime."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.broker.broker import Broker
from nilometer.broker.settings.config import BrokerConfig
from nilometer.coordination.local.store import LocalStore
from nilometer.runtime import Runtime
from nilometer.simulation.world import Process, World

IDS = (1, 2, 3)


class Cluster:
    def __init__(self, world: World) -> None:
        self._machine = world.host("m")
        self.serving: set[int] = set()
        self.processes: dict[int, Process] = {}

    async def set_up(self) -> None:
        async def make_folders(runtime: Runtime) -> None:
            for id in IDS:
                runtime.disk.make_directories(f"/data/{id}")

        await self._machine.start("setup", make_folders).exited
        for id in IDS:
            self.start(id)
        await self.until_serving()

    def start(self, id: int) -> None:
        self.processes[id] = self._machine.start(f"broker-{id}", lambda runtime: self._main(runtime, id))

    async def _main(self, runtime: Runtime, id: int) -> None:
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{9090 + id}",
            "log.dirs": f"/data/{id}",
            "node.id": str(id),
            "nilometer.coordination": "local:/data/coordination",
        }
        self.serving.discard(id)
        await Broker(BrokerConfig(settings), runtime).start()
        self.serving.add(id)
        await asyncio.Event().wait()

    async def until_serving(self) -> None:
        while self.serving != set(IDS):
            for id, process in self.processes.items():
                assert process.alive, f"broker {id} ended: {process.exited.result()!r}"
            await asyncio.sleep(0.1)

    async def live(self) -> tuple[list[int], int | None]:
        """Broker ids with a live session, and the controller's."""
        found: list[tuple[list[int], int | None]] = []

        async def ask(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/coordination")
            await store.open()
            controller = await store.controller()
            ids = [session.broker_id for session in await store.sessions()]
            found.append((ids, controller.broker_id if controller else None))
            await store.close()

        assert await self._machine.start("asker", ask).exited is None
        return found[0]


async def main(world: World) -> None:
    cluster = Cluster(world)
    await cluster.set_up()
    await asyncio.sleep(10)
    ids, controller = await cluster.live()
    assert ids == [1, 2, 3]
    assert controller is not None
    cluster.processes[controller].crash()
    await asyncio.sleep(1)
    ids, successor = await cluster.live()
    assert ids == [id for id in IDS if id != controller]
    assert successor in ids
    cluster.start(controller)
    cluster.serving.discard(controller)
    await cluster.until_serving()
    await asyncio.sleep(60)
    ids, _ = await cluster.live()
    assert ids == [1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_three_brokers_agree_and_replace_a_dead_controller(seed: int) -> None:
    digests: list[str] = []
    for _ in range(2):
        world = World(seed)
        world.run(main, limit_s=1_000)
        assert world.failures == []
        digests.append(world.trace.digest)
    assert digests[0] == digests[1], "the same seed took another course"
