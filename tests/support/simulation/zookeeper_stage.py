"""A simulated world with a ZooKeeper ensemble and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nilometer.coordination.zookeeper.ensemble import (
    Ensemble,
)
from nilometer.runtime import Runtime
from nilometer.simulation.stores import VirtualEnsemble
from nilometer.simulation.world import Process, World
from nilometer.simulation.zookeeper.server import Server, Settings

SETTINGS = Settings(tick_ms=500, sync_limit=4)


def _nothing() -> None:
    """A callback without effect."""


class Stage:
    """A world with an ensemble, and clients of it."""

    def __init__(self, seed: int, settings: Settings = SETTINGS) -> None:
        self.world = World(seed)
        self.ensemble = VirtualEnsemble(self.world, settings=settings)

    def run(self, scenario: Callable[[Stage], Awaitable[None]]) -> None:
        async def main(world: World) -> None:
            self.ensemble.start()
            await scenario(self)

        self.world.run(main)
        assert self.world.failures == []

    async def client(
        self,
        name: str,
        *,
        timeout_ms: int = 3000,
        on_connected: Callable[[], None] = _nothing,
        on_lost: Callable[[], None] = _nothing,
        chroot: str = "",
        user: str = "",
        protects: bool = False,
    ) -> tuple[Ensemble, Process]:
        """A started client, in a process of its own on a machine of that name.

        ``user``: the user that it authenticates as; ``protects``: whether its nodes get an ACL.
        """
        made: asyncio.Future[Ensemble] = self.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            connect = self.ensemble.connect(process, chroot, user=user, protects=protects)
            client = connect(timeout_ms, on_connected, on_lost)
            await client.start(30)
            made.set_result(client)
            await self.world.loop.create_future()

        process = self.world.host(name).start(name, main)
        return await made, process

    async def leader(self) -> Server:
        while self.ensemble.leader is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return self.ensemble.leader

    def server_of(self, client: Ensemble) -> Server:
        name = client.server.partition(":")[0]
        return next(server for server in self.ensemble.servers if server.name == name)

    def cut(self, one: str, other: str) -> None:
        self.world.network.separate([one], [other])

    def cut_off(self, server: Server) -> None:
        """From the other servers, not from clients."""
        for other in self.ensemble.servers:
            if other is not server:
                self.cut(server.name, other.name)


def played(
    scenario: Callable[[Stage], Awaitable[None]], seed: int = 1, settings: Settings = SETTINGS
) -> None:
    Stage(seed, settings).run(scenario)
