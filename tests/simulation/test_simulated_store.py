"""The real folder store in the simulated world: deaths, power cuts, hangs, failing disks, over many seeds."""

from __future__ import annotations

import asyncio
import errno

import pytest

from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import SessionInfo
from nilometer.runtime import Runtime
from nilometer.simulation.world import Process, World
from support.coordination.simulated_store import (
    HEALED_S,
    TIMEOUT_MS,
    History,
    judge,
    start,
    stop_on_failure,
)


@pytest.mark.parametrize(
    "seed",
    [*range(5), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(5, 25))],
)
def test_any_mix_of_deaths_hangs_and_power_cuts(seed: int) -> None:
    live_and_die(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25, 1000))
def test_any_mix_of_deaths_hangs_and_power_cuts__many_seeds(seed: int) -> None:
    live_and_die(seed)


def live_and_die(seed: int) -> None:
    history = History()

    async def scenario(world: World) -> None:
        machine = world.host("m")
        machine.disk.signal_ms = (0.5, world.chance.choice([15.0, 200.0]))
        for id in (1, 2, 3):
            stop_on_failure(world, start(world, id, history))
        for _ in range(40):
            await asyncio.sleep(world.chance.uniform(0.0, 0.3))
            await inject_faults(world, history)
        machine.disk.stalled_until = 0.0
        for process in list(machine.processes):
            process.resume()
        won_during_faults = len(history.won)
        await asyncio.sleep(HEALED_S)
        assert len(history.won) > won_during_faults, "once all faults are over, a process wins"
        for process in list(machine.processes):
            process.crash()
        await judge(world, history)

    world = World(seed)
    world.run(scenario)
    assert world.failures == [], world.failures[0]


async def inject_faults(world: World, history: History) -> None:
    machine = world.host("m")
    victim = world.chance.choice(machine.processes)
    match world.chance.choice(["crash", "pause", "resume", "resume", "power", "full", "stall", "nothing"]):
        case "crash":
            victim.crash()
            id = int(victim.name.partition("-")[2])
            stop_on_failure(world, start(world, id, history))
        case "pause":
            victim.pause()
        case "resume":
            for process in machine.processes:
                process.resume()
        case "power" if world.chance.random() < 0.5:
            machine.power_off()
            await judge_after_power(world, history)
        case "full":
            machine.disk.capacity = machine.disk.used + world.chance.randrange(2000)
            await asyncio.sleep(world.chance.uniform(0.0, 0.5))
            machine.disk.capacity = 1 << 40
        case "stall":
            machine.disk.stalled_until = world.loop.time() + world.chance.uniform(0.0, 2.0)
        case _:
            pass


async def judge_after_power(world: World, history: History) -> None:
    world.host("m").power_on()
    await judge(world, history)
    for id in (1, 2, 3):
        stop_on_failure(world, start(world, id, history))


def test_a_dead_broker_is_seen_by_signal_not_by_polling() -> None:
    """No looks at all would find it within the session timeout / 10: the dropped lock itself tells."""
    seen: list[float] = []

    async def scenario(world: World) -> None:
        machine = world.host("m")

        async def watcher(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=60_000)
            await store.open()
            await store.register(2, b"")
            value = -1
            live: list[SessionInfo] = []
            while [session.broker_id for session in live] != [1, 2]:
                value = await store.wait_changed(value)
                live = await store.sessions()
            while len(live) == 2:
                value = await store.wait_changed(value)
                live = await store.sessions()
            seen.append(world.loop.time())

        async def other(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=60_000)
            await store.open()
            await store.register(1, b"")
            await asyncio.sleep(1_000)

        watching = machine.start("watcher", watcher)
        process = machine.start("other", other)
        await asyncio.sleep(5)
        died = world.loop.time()
        process.crash()
        await watching.exited
        assert seen[0] - died < 0.1

    World(3).run(scenario)


@pytest.mark.parametrize("seed", range(10))
def test_an_entry_visible_before_it_is_durable_is_never_used(seed: int) -> None:
    """Its writer dies between link and sync. A reader then must sync it before it is shown."""
    shown: list[list[bytes]] = []

    async def scenario(world: World) -> None:
        machine = world.host("m")

        async def author(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            await store.append(0, b"zero")
            machine.disk.strike = crash_before_sync
            await store.append(1, b"one")

        def crash_before_sync(process: object, verb: str, path: str) -> None:
            assert isinstance(process, Process)
            if process.name == "author" and verb == "sync" and path.startswith("/data/store/entries/"):
                process.crash()

        async def reader(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            shown.append([entry.data for entry in await store.read(0, 10)])

        await machine.start("author", author).exited
        if seed % 2:
            assert await machine.start("reader", reader).exited is None
            assert shown[-1] == [b"zero", b"one"]
        machine.power_off()
        machine.power_on()
        assert await machine.start("reader", reader).exited is None

    World(seed).run(scenario)
    assert shown[-1] == shown[0]
    assert shown[-1][0] == b"zero"


def test_a_disk_that_fails_for_a_while_ends_nobodys_watch() -> None:
    """Every look fails, the ones after the failure too; once the disk works, signals come again."""

    async def scenario(world: World) -> None:
        machine = world.host("m")
        opened: dict[str, LocalStore] = {}

        async def broker(runtime: Runtime, name: str) -> None:
            store = opened[name] = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            await store.register(int(name), b"")
            await asyncio.Event().wait()

        def refuse(process: object, verb: str, path: str) -> None:
            raise OSError(errno.EIO, "Input/output error", path)

        for name in ("1", "2"):
            machine.start(name, lambda runtime, name=name: broker(runtime, name))
        await asyncio.sleep(1)
        willing, machine.disk.strike = machine.disk.strike, refuse
        await asyncio.sleep(0.4)
        machine.disk.strike = willing
        await asyncio.sleep(2)
        seen = await opened["2"].wait_changed(-1)
        heard = asyncio.create_task(opened["2"].wait_changed(seen))
        await asyncio.sleep(0.5)

        async def writer(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            assert await store.append(0, b"entry")

        assert await machine.start("writer", writer).exited is None
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            assert await heard > seen

    world = World(3)
    world.run(scenario)
    assert world.failures == []
