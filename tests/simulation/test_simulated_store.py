"""The real folder store in the virtual world: dying at every step, power cuts, hangs, over many seeds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from nilometer.coordination import (
    CoordinationError,
    EntriesRetired,
    LocalStore,
    OutcomeUnknown,
    Session,
    SessionInfo,
    SessionName,
    StoreUnavailable,
)
from nilometer.coordination.local import LocalSession
from nilometer.runtime import Runtime
from nilometer.simulation.loop import ProcessGone
from nilometer.simulation.world import Process, World

HEALED_S = 3.0
"""A hanging disk may hold work for two seconds after it is well."""
TIMEOUT_MS = 1000


class History:
    """What the brokers of one world were told, and what must follow from it."""

    def __init__(self) -> None:
        self.won: dict[int, bytes] = {}
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.tokens = 0
        self.cluster_ids: set[str] = set()
        self.sessions_seen: set[SessionName] = set()

    def on_open(self, cluster_id: str) -> None:
        self.cluster_ids.add(cluster_id)
        assert len(self.cluster_ids) == 1, "the cluster changed its id"

    def on_registered(self, name: SessionName) -> None:
        assert name not in self.sessions_seen, f"{name} lived before"
        self.sessions_seen.add(name)

    def token(self) -> bytes:
        self.tokens += 1
        return b"entry %d" % self.tokens

    def on_won(self, number: int, data: bytes) -> None:
        assert self.won.get(number, data) == data, f"two writers were told they hold number {number}"
        self.won[number] = data
        self.on_seen(number, data)

    def on_seen(self, number: int, data: bytes) -> None:
        """Once a reader was shown an entry, no reader is ever shown another of its number."""
        assert self.seen.setdefault(number, data) == data, f"number {number} changed"
        assert data not in self.refused, f"{data!r} was refused, and yet it is number {number}"

    def on_refused(self, data: bytes) -> None:
        assert data not in self.seen.values()
        self.refused.add(data)


class Broker:
    """Appends, follows, snapshots, claims, all at random, and notes what it was told."""

    def __init__(self, broker_id: int, history: History, *, snapshots: bool = True) -> None:
        self._id = broker_id
        self._history = history
        self._snapshots = snapshots
        self.next_number = 0

    async def main(self, runtime: Runtime) -> None:
        self.next_number = 0
        store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
        await self._patiently(runtime, store.open)
        self._history.on_open(store.cluster_id)
        session = await self._register(runtime, store)
        while True:
            await asyncio.sleep(runtime.entropy.uniform(0.0, 0.02))
            if session.lost:
                session = await self._register(runtime, store)
            try:
                await self._act(runtime, store)
            except EntriesRetired as retired:
                assert retired.snapshot_number > self.next_number
                self.next_number = retired.snapshot_number
            except CoordinationError:
                continue

    async def _register(self, runtime: Runtime, store: LocalStore) -> Session:
        session = await self._patiently(runtime, lambda: store.register(self._id, b"p"))
        assert isinstance(session, LocalSession)
        self._history.on_registered(session.name)
        return session

    async def _patiently(self, runtime: Runtime, call: Callable[[], object]) -> object:
        while True:
            try:
                return await call()  # type: ignore[misc]
            except StoreUnavailable:
                await asyncio.sleep(0.05)

    async def _act(self, runtime: Runtime, store: LocalStore) -> None:
        for entry in await store.read(self.next_number, 50):
            assert entry.number == self.next_number
            self._history.on_seen(entry.number, entry.data)
            self.next_number += 1
        match runtime.entropy.below(10):
            case 0 if self._snapshots and self.next_number:
                await store.write_snapshot(self.next_number, b"s%d" % self.next_number)
            case 1:
                await store.claim_controller()
            case 2:
                snapshot = await store.read_snapshot()
                assert snapshot is None or snapshot.data == b"s%d" % snapshot.number
            case _:
                await self._append(store)

    async def _append(self, store: LocalStore) -> None:
        data = self._history.token()
        number = self.next_number
        self._history.unknown.add(data)
        try:
            won = await store.append(number, data)
        except OutcomeUnknown:
            return
        except CoordinationError:
            self._history.unknown.discard(data)
            self._history.on_refused(data)
            raise
        self._history.unknown.discard(data)
        if won:
            self._history.on_won(number, data)
        else:
            self._history.on_refused(data)


async def read_all(store: LocalStore, history: History) -> dict[int, bytes]:
    snapshot = await store.read_snapshot()
    number = snapshot.number if snapshot else 0
    found: dict[int, bytes] = {}
    while batch := await store.read(number, 1000):
        for entry in batch:
            assert entry.number == number
            history.on_seen(number, entry.data)
            found[number] = entry.data
            number += 1
    for missing in [number for number in history.seen if number not in found]:
        assert snapshot is not None and missing < snapshot.number, f"number {missing} was shown and is gone"
    return found


async def judge(world: World, history: History) -> None:
    """A fresh process finds all that any process was shown or promised."""
    verdict: list[dict[int, bytes]] = []

    async def main(runtime: Runtime) -> None:
        store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
        await store.open()
        history.on_open(store.cluster_id)
        verdict.append(await read_all(store, history))
        await store.close()

    error = await world.host("m").start("judge", main).exited
    if error is not None:
        raise error
    assert verdict


def start(world: World, broker_id: int, history: History) -> Process:
    return world.host("m").start(f"broker-{broker_id}", Broker(broker_id, history).main)


def stop_on_failure(world: World, process: Process) -> None:
    def check(exited: asyncio.Future[BaseException | None]) -> None:
        if exited.result() is not None:
            world.failures.append(exited.result())  # type: ignore[arg-type]

    process.exited.add_done_callback(check)


@pytest.mark.parametrize("seed", range(25))
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


class StrikeAt:
    """Strikes a process at its n-th disk operation after the fuse was lit."""

    def __init__(self, victim: str, at: int, blow: Callable[[Process], None]) -> None:
        self._victim = victim
        self._at = at
        self._blow = blow
        self.count = 0

    def __call__(self, process: object, verb: str, path: str) -> None:
        assert isinstance(process, Process)
        if process.name == self._victim and verb not in ("exists", "list", "size", "read", "write"):
            self.count += 1
            if self.count == self._at:
                self._blow(process)


def append_struck_at(step: int, seed: int, *, power: bool) -> tuple[bool, list[bytes], int]:
    """An append that dies at its ``step``-th disk operation: was it told True, and what is there."""
    outcome: list[bool] = []
    found: list[list[bytes]] = []
    counted: list[int] = []

    async def scenario(world: World) -> None:
        machine = world.host("m")
        ready = world.loop.create_future()

        async def victim(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            await store.register(1, b"")
            assert await store.append(0, b"zero")
            machine.disk.strike = StrikeAt("victim", step, blow)
            ready.set_result(None)
            outcome.append(await store.append(1, b"one"))

        def blow(process: Process) -> None:
            if power:
                world.loop.in_process(0.0, None, machine.power_off)
                process.pause()
                raise ProcessGone
            process.crash()

        process = machine.start("victim", victim)
        await ready
        await process.exited
        counted.append(machine.disk.strike.count)  # type: ignore[attr-defined]
        if power:
            if machine.up:
                machine.power_off()
            machine.power_on()

        async def survivor(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            assert await store.sessions() == []
            entries = await store.read(0, 10)
            found.append([entry.data for entry in entries])
            assert await store.append(len(entries), b"survivor") is True
            assert [entry.data for entry in await store.read(0, 10)] == [*found[0], b"survivor"]

        assert await machine.start("survivor", survivor).exited is None

    world = World(seed)
    world.run(scenario)
    return bool(outcome), found[0], counted[0]


@pytest.mark.parametrize("power", [False, True], ids=["process", "machine"])
def test_an_append_that_dies_at_any_step_is_there_whole_or_not_at_all(power: bool) -> None:
    _, _, steps = append_struck_at(10_000, 0, power=power)
    assert steps >= 7
    stood: set[bool] = set()
    for seed in range(10):
        for step in range(1, steps + 2):
            told, found, _ = append_struck_at(step, seed, power=power)
            assert found in ([b"zero"], [b"zero", b"one"])
            assert not told or found == [b"zero", b"one"], "what was acknowledged is there"
            stood.add(b"one" in found)
    assert stood == {True, False}


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


def snapshot_struck_at(step: int, seed: int) -> tuple[int, int]:
    """A machine that loses power at the ``step``-th operation of a snapshot; its base, and how many steps."""
    bases: list[int] = []
    counted: list[int] = []

    async def scenario(world: World) -> None:
        machine = world.host("m")
        ready = world.loop.create_future()

        async def victim(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            for number in range(6):
                assert await store.append(number, b"%d" % number)
            machine.disk.strike = StrikeAt("victim", step, lambda process: process.crash())
            ready.set_result(None)
            assert await store.write_snapshot(4, b"state at 4")

        async def reader(runtime: Runtime) -> None:
            store = LocalStore(runtime, "/data/store", session_timeout_ms=TIMEOUT_MS)
            await store.open()
            await store.read(6, 1)  # completes the work of a seal, if there is one
            snapshot = await store.read_snapshot()
            bases.append(snapshot.number if snapshot else 0)
            assert snapshot is None or snapshot.data == b"state at 4"
            entries = await store.read(bases[-1], 10)
            assert [entry.data for entry in entries] == [b"%d" % number for number in range(bases[-1], 6)]

        process = machine.start("victim", victim)
        await ready
        await process.exited
        counted.append(machine.disk.strike.count)  # type: ignore[attr-defined]
        if seed % 2:
            assert await machine.start("reader", reader).exited is None
        machine.power_off()
        machine.power_on()
        assert await machine.start("reader", reader).exited is None
        assert bases[-1] >= bases[0], "a snapshot that was read is not taken back"

    World(seed).run(scenario)
    return bases[-1], counted[0]


def test_a_snapshot_that_dies_at_any_step_leaves_the_whole_sequence() -> None:
    _, steps = snapshot_struck_at(10_000, 0)
    assert steps >= 15
    bases = [snapshot_struck_at(step, seed)[0] for seed in range(12) for step in range(1, steps + 2)]
    assert set(bases) == {0, 4}


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
