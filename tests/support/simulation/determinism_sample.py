"""A small simulation with all sources of nondeterminism, to compare the traces of two runs."""

from __future__ import annotations

import asyncio

from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Runtime
from nilometer.simulation.world import World


async def chatter(runtime: Runtime) -> None:
    """Echo to every client that connects, and connect to the other hosts at random."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data[::-1])

    listener = await runtime.network.listen(Echo, "0.0.0.0", 9000)
    await listener.start()
    while True:
        await asyncio.sleep(runtime.entropy.uniform(0.01, 0.1))
        peer = runtime.entropy.choice(["a", "b", "c"])
        try:
            protocol = await runtime.network.connect(Echo, peer, 9000)
        except OSError:
            continue
        assert isinstance(protocol, Echo)
        protocol.transport.write(bytes(runtime.entropy.below(2000)))
        await asyncio.sleep(0.005)
        protocol.transport.abort()


async def contender(runtime: Runtime, broker_id: int) -> None:
    store = LocalStore(runtime, "/store", session_timeout_ms=1000)
    await store.open()
    await store.register(broker_id, b"")
    number = 0
    while True:
        await asyncio.sleep(runtime.entropy.uniform(0.0, 0.05))
        try:
            for entry in await store.read(number, 100):
                number = entry.number + 1
            await store.append(number, f"{broker_id}".encode())
            await store.claim_controller()
        except CoordinationError:
            continue


def busy_world(seed: int) -> str:
    """Run the simulation with ``seed`` and return the hash of its trace."""

    async def scenario(world: World) -> None:
        for name in ("a", "b", "c"):
            world.host(name).start(f"chatter-{name}", chatter)
        store_host = world.host("s")
        for id in (1, 2, 3):
            store_host.start(f"broker-{id}", lambda runtime, id=id: contender(runtime, id))
        for _ in range(20):
            await asyncio.sleep(world.chance.uniform(0.05, 0.3))
            name = world.chance.choice(["a", "b", "c"])
            other = world.chance.choice(["a", "b", "c"])
            match world.chance.randrange(4):
                case 0:
                    world.network.cut(name, other)
                case 1:
                    world.network.heal_all()
                case 2 if world.host(name).processes:
                    world.host(name).processes[0].crash()
                    world.host(name).start(f"chatter-{name}", chatter)
                case _:
                    victim = world.chance.choice(store_host.processes)
                    id = int(victim.name.partition("-")[2])
                    victim.crash()
                    store_host.start(victim.name, lambda runtime, id=id: contender(runtime, id))

    world = World(seed)
    world.run(scenario)
    assert world.failures == []
    assert world.trace.count > 1000
    return world.trace.digest
