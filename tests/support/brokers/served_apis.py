"""The APIs that a broker serves, as a broker assembles them: it starts on a virtual network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nilometer.broker.api import spec
from nilometer.broker.api.spec import ApiSpec
from nilometer.broker.broker import Broker
from nilometer.broker.settings.config import BrokerConfig
from nilometer.runtime import Runtime
from nilometer.simulation.world import World

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "log.dirs": "/data/1",
    "node.id": "1",
    "nilometer.coordination": "local:/data/coordination",
}


def _served() -> Mapping[int, ApiSpec]:
    found: dict[int, ApiSpec] = {}

    async def play(world: World) -> None:
        serves = asyncio.Event()

        async def run(runtime: Runtime) -> None:
            runtime.disk.make_directories("/data/1")
            broker = Broker(BrokerConfig(SETTINGS), runtime)
            await broker.start()
            found.update(broker.parts.dispatcher.apis)
            serves.set()

        process = world.host("m").start("broker", run)
        served = asyncio.ensure_future(serves.wait())
        await asyncio.wait((served, process.exited), return_when=asyncio.FIRST_COMPLETED)
        served.cancel()

    world = World(1)
    world.run(play, limit_s=600)
    assert world.failures == []
    assert found, "the broker has started"
    return found


APIS = _served()
"""By API key, in their order."""


def ranges(*, for_brokers: bool) -> Mapping[int, tuple[int, int]]:
    """Return, by API key, the lowest and highest version that is advertised."""
    return spec.ranges(tuple(APIS.values()), for_brokers=for_brokers)
