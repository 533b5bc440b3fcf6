"""Members of a coordination store in a simulation, with the interface of ``coordination_cluster``.

The store is the shipped one, on a virtual ensemble of three ZooKeeper servers; time is virtual.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from nilometer.coordination.store import CoordinationError
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.runtime import Runtime
from nilometer.simulation.stores import VirtualEnsemble
from nilometer.simulation.world import Process, World
from nilometer.simulation.zookeeper.server import Settings
from support.coordination.agent import Agent
from support.coordination.cluster import PATIENCE_S, Refused


class VirtualAgent(Agent):
    """An Agent with a store that it is given."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.store = store
        self.session = None


class VirtualMember:
    """A simulated process that uses the store on command."""

    def __init__(self, world: World, process: Process, agent: Agent) -> None:
        self._world = world
        self._agent = agent
        self.process = process
        self.pid = process.pid
        self._calls: list[asyncio.Future[Any]] = []

    def start(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        call: asyncio.Future[Any] = self._world.loop.create_future()
        if not self.process.alive:
            call.set_exception(ConnectionError("the member died"))
            return call
        self._calls = [each for each in self._calls if not each.done()] + [call]

        def begin() -> None:
            self._world.loop.create_task(self._answer(call, method, arguments))

        self._world.loop.in_process(0.0, self.process, begin)
        return call

    async def _answer(self, call: asyncio.Future[Any], method: str, arguments: tuple[Any, ...]) -> None:
        try:
            result = await getattr(self._agent, method)(*arguments)
        except (CoordinationError, ValueError) as error:
            number = getattr(error, "snapshot_number", None)
            if not call.done():
                call.set_exception(Refused(type(error).__name__, str(error), number))
        else:
            if not call.done():
                call.set_result(json.loads(json.dumps(result)))

    async def call(self, method: str, *arguments: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.start(method, *arguments)

    async def refusal(self, method: str, *arguments: Any) -> Refused:
        try:
            result = await self.call(method, *arguments)
        except Refused as refused:
            return refused
        raise AssertionError(f"{method}{arguments} was not refused but returned {result!r}")

    async def until(self, method: str, wanted: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            seen = -1
            while True:
                seen = await self.start("wait_changed", seen)
                answer = await self.start(method)
                if wanted(answer):
                    return answer

    async def kill(self) -> None:
        self.process.crash()
        for call in self._calls:
            if not call.done():
                call.set_exception(ConnectionError("the member died"))
        self._calls.clear()

    def stop(self) -> None:
        self.process.pause()

    def go_on(self) -> None:
        self.process.resume()


class VirtualCluster:
    """Starts members of one store on a virtual ensemble, each on its own virtual machine."""

    kind = "zookeeper"

    def __init__(self, seed: int, session_timeout_ms: int = 1500, settings: Settings | None = None) -> None:
        self.world = World(seed)
        self.ensemble = VirtualEnsemble(self.world, settings=settings or Settings(tick_ms=200))
        self.session_timeout_ms = session_timeout_ms
        self._members = 0

    async def start(
        self, broker_id: int | None = None, *, opened: bool = True, cluster_id: str | None = None
    ) -> VirtualMember:
        self._members += 1
        host = self.world.host(f"machine-{self._members}")
        made: asyncio.Future[VirtualMember] = self.world.loop.create_future()

        async def main(runtime: Runtime) -> None:
            store = ZooKeeperStore(
                runtime,
                "virtual servers",
                self.ensemble.connect(process, "/store"),
                session_timeout_ms=self.session_timeout_ms,
                cluster_id=cluster_id,
            )
            made.set_result(VirtualMember(self.world, process, VirtualAgent(store)))
            await self.world.loop.create_future()

        process = host.start(f"member-{self._members}", main)
        member = await made
        if opened:
            await member.call("open")
        if broker_id is not None:
            await member.call("register", broker_id, f"payload of {broker_id}")
        return member

    def run(self, scenario: Callable[[Any], Awaitable[None]]) -> None:
        async def with_ensemble(world: World) -> None:
            self.ensemble.start()
            await scenario(self)

        self.world.run(with_ensemble)
        assert self.world.failures == []
