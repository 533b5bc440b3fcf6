"""The shipped ZooKeeper store on the virtual ensemble, where servers tell falsehoods."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.coordination import Session
from nilometer.coordination.zookeeper import ZooKeeperStore
from nilometer.coordination.zookeeper.registration import Registration
from nilometer.runtime import Runtime
from nilometer.simulation.world import World
from nilometer.simulation.zookeeper.ensemble import VirtualEnsemble
from nilometer.simulation.zookeeper.server import Settings

TIMEOUT_MS = 3000


def _former_node_stands(seed: int) -> float | None:
    """A leader is stopped and thaws. How long its broker takes to register again, if it is told that its
    session has ended while its node still stands at the others; None in the many worlds where it is not."""
    world = World(seed)
    ensemble = VirtualEnsemble(world, settings=Settings(tick_ms=500, sync_limit=4))
    took: list[float] = []
    opened: asyncio.Future[Session] = world.loop.create_future()

    async def broker(runtime: Runtime) -> None:
        store = ZooKeeperStore(runtime, "servers", ensemble.connect(process), session_timeout_ms=TIMEOUT_MS)
        await store.open()
        session = await store.register(1, b"first")
        opened.set_result(session)
        await session.wait_lost()
        node = ensemble.tree.nodes.get("/brokers/ids/1")
        if node is None or node.created_zxid != session.name.incarnation:
            return
        begun = world.loop.time()
        again = await store.register(1, b"second")
        assert again.name.incarnation > session.name.incarnation
        took.append(world.loop.time() - begun)

    async def story(world: World) -> None:
        ensemble.start()
        await opened
        assert ensemble.leader is not None
        leader = ensemble.leader
        leader.pause()
        await asyncio.sleep(world.chance.uniform(3, 4.5))
        leader.resume()
        await asyncio.sleep(20)

    process = world.host("machine").start("broker", broker)
    world.run(story)
    assert world.failures == []
    return took[0] if took else None


def test_a_broker_does_not_wait_for_its_own_former_node() -> None:
    took = [each for seed in range(40) if (each := _former_node_stands(seed)) is not None]
    assert took, "no world of these shows it"
    assert max(took) < TIMEOUT_MS / 1000 / 2


def test_without_that_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: a broker that does not know its own nodes waits for their end."""

    async def wait(self: Registration, name: object, nonce: str) -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(Registration, "_remove_former", wait)
    took = [each for seed in range(40) if (each := _former_node_stands(seed)) is not None]
    assert max(took) > TIMEOUT_MS / 1000 / 2
