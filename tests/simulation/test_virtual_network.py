"""What the virtual network does to connections when something breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nilometer.runtime import Runtime
from nilometer.simulation.world import Process, World


class Talker(asyncio.Protocol):
    def __init__(self, world: World) -> None:
        self._world = world
        self.data = bytearray()
        self.arrived: list[float] = []
        self.ended = ""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.arrived.append(self._world.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = type(exc).__name__ if exc else "closed"


class Scene:
    """A server on host b, a client on host a, and the connection between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.served: list[Talker] = []
        self.server: Process
        self.client: Process
        self.near: Talker

    @property
    def far(self) -> Talker:
        return self.served[-1]

    async def set_up(self) -> None:
        world = self.world
        world.host("a")
        world.host("b")
        self.server = world.host("b").start("server", self.serve)
        await asyncio.sleep(0.1)
        self.client = world.host("a").start("client", self.connect)
        await asyncio.sleep(0.1)
        assert self.served

    async def serve(self, runtime: Runtime) -> None:
        def accept() -> Talker:
            self.served.append(Talker(self.world))
            return self.served[-1]

        listener = await runtime.network.listen(accept, "0.0.0.0", 9092)
        await listener.start()
        await asyncio.sleep(100_000)

    async def connect(self, runtime: Runtime) -> None:
        near = await runtime.network.connect(lambda: Talker(self.world), "b", 9092)
        assert isinstance(near, Talker)
        self.near = near
        await asyncio.sleep(100_000)


def played(scenario: Callable[[World, Scene], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def whole(world: World) -> None:
            scene = Scene(world)
            await scene.set_up()
            await scenario(world, scene)

        for seed in range(5):
            world = World(seed)
            world.run(whole, limit_s=1_000_000)
            assert world.failures == []

    test.__name__ = scenario.__name__
    return test


@played
async def test_a_cut_holds_back_what_was_sent_and_a_heal_lets_it_through(world: World, scene: Scene) -> None:
    world.network.separate(["a"], ["b"])
    for part in (b"one ", b"two ", b"three"):
        scene.near.transport.write(part)
        await asyncio.sleep(5)
    assert scene.far.data == b""
    world.network.heal_all()
    await asyncio.sleep(2)
    assert scene.far.data == b"one two three"
    assert scene.near.ended == ""


@played
async def test_a_one_way_cut_lets_the_other_way_pass_until_acknowledgements_run_out(
    world: World, scene: Scene
) -> None:
    world.network.cut("a", "b")
    scene.far.transport.write(b"x" * 3_000_000)
    scene.near.transport.write(b"unheard")
    await asyncio.sleep(1)
    assert 0 < len(scene.near.data) < 3_000_000
    assert scene.far.data == b""
    world.network.heal("a", "b")
    await asyncio.sleep(2)
    assert len(scene.near.data) == 3_000_000
    assert scene.far.data == b"unheard"


@played
async def test_a_cut_that_lasts_is_given_up_by_the_sender(world: World, scene: Scene) -> None:
    world.network.cut("a", "b")
    scene.near.transport.write(b"hello?")
    await asyncio.sleep(200)
    assert scene.near.ended == "TimeoutError"
    assert scene.far.ended == "", "who sends nothing learns nothing"


@played
async def test_a_dead_process_says_goodbye_a_dead_machine_says_nothing(world: World, scene: Scene) -> None:
    scene.server.crash()
    await asyncio.sleep(1)
    assert scene.near.ended in ("closed", "ConnectionResetError")
    scene.client.crash()
    await scene.set_up()
    world.host("b").power_off()
    await asyncio.sleep(30)
    assert scene.near.ended == ""
    scene.near.transport.write(b"still there?")
    await asyncio.sleep(5)
    world.host("b").power_on()
    await asyncio.sleep(5)
    assert scene.near.ended == "ConnectionResetError", "the machine is back and knows no such connection"


@played
async def test_a_reset_ends_both_sides(world: World, scene: Scene) -> None:
    world.network.reset("b", "a")
    await asyncio.sleep(0.1)
    assert scene.near.ended == scene.far.ended == "ConnectionResetError"


@played
async def test_a_paused_process_reads_later_and_presses_back(world: World, scene: Scene) -> None:
    scene.server.pause()
    scene.near.transport.write(b"x" * 2_000_000)
    await asyncio.sleep(60)
    assert scene.far.data == b""
    assert scene.near.transport.get_write_buffer_size() > 1_000_000
    scene.server.resume()
    await asyncio.sleep(1)
    assert len(scene.far.data) == 2_000_000
    assert scene.near.transport.get_write_buffer_size() == 0


@played
async def test_a_slow_link_is_slow_one_way(world: World, scene: Scene) -> None:
    world.network.slow("a", "b", 3_000)
    start = world.loop.time()
    scene.near.transport.write(b"slow")
    scene.far.transport.write(b"fast")
    await asyncio.sleep(10)
    assert scene.far.arrived[0] - start >= 3
    assert scene.near.arrived[0] - start < 0.1


@played
async def test_hiccups_reorder_connections_but_nothing_within_one(world: World, scene: Scene) -> None:
    world.network.delay_spike_share = 0.3
    scene.client.world.host("a").start("client-2", scene.connect)
    await asyncio.sleep(10)
    sent = [b"%04d" % number for number in range(500)]
    for part in sent:
        scene.near.transport.write(part)
        await asyncio.sleep(0.001)
    await asyncio.sleep(500)
    assert scene.far.data == b"".join(sent)


@played
async def test_connecting_fails_as_on_a_real_network(world: World, scene: Scene) -> None:
    outcomes: list[str] = []

    async def attempt(runtime: Runtime) -> None:
        for host, port in (("b", 1), ("b", 9092), ("nowhere", 1)):
            try:
                await runtime.network.connect(lambda: Talker(world), host, port)
                outcomes.append("connected")
            except OSError as error:
                outcomes.append(type(error).__name__)

    await world.host("a").start("attempt", attempt).exited
    assert outcomes == ["ConnectionRefusedError", "connected", "OSError"]
    world.network.separate(["a"], ["b"])
    outcomes.clear()
    assert await world.host("a").start("attempt", attempt).exited is None
    assert outcomes == ["TimeoutError", "TimeoutError", "OSError"]


def test_a_protocol_that_fails_loses_its_connection_and_is_reported() -> None:
    async def scenario(world: World) -> None:
        scene = Scene(world)
        await scene.set_up()

        def fail(data: bytes) -> None:
            raise ValueError("cannot parse")

        scene.far.data_received = fail  # type: ignore[method-assign]
        scene.near.transport.write(b"garbage")
        await asyncio.sleep(1)
        assert scene.far.ended == "ValueError"
        assert scene.near.ended == "ConnectionResetError"

    world = World(1)
    world.run(scenario)
    assert [str(error) for error in world.failures] == ["cannot parse"]


def test_the_dead_leave_no_connections_behind() -> None:
    async def scenario(world: World) -> None:
        scene = Scene(world)
        await scene.set_up()
        for _ in range(20):
            scene.client.crash()
            scene.client = world.host("a").start("client", scene.connect)
            await asyncio.sleep(1)
        assert len(world.network.connections) == 1
        scene.server.crash()
        await asyncio.sleep(1)
        assert world.network.connections == []
        assert world.network.listeners == {}

    World(1).run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_tear_only_what_was_not_synced(seed: int) -> None:
    found: list[bytes] = []

    async def write(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.make_directories("/d")
        disk.sync_directory("/")
        file = disk.open("/d/log", create=True)
        file.append([b"s" * 1000])
        await disk.offload(file.sync)
        disk.sync_directory("/d")
        file.append([b"u" * 5000])
        disk.open("/d/unnamed", create=True).close()
        await asyncio.sleep(1000)

    async def scenario(world: World) -> None:
        machine = world.host("m")
        machine.start("writer", write)
        await asyncio.sleep(1)
        machine.processes[0].crash()
        assert len(machine.disk.file("/d/log").data) == 6000, "pages outlive the process"
        machine.power_off()
        machine.power_on()
        found.append(bytes(machine.disk.file("/d/log").data))

    for repeat in range(20):
        World(100 * seed + repeat).run(scenario)
    assert all(data.startswith(b"s" * 1000) for data in found)
    assert len({len(data) for data in found}) > 3
    assert any(0 in data for data in found), "a sector inside was never written"
