"""An append or a snapshot of the folder store that dies at any of its steps, in the simulated world."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nilometer.coordination.local.store import LocalStore
from nilometer.runtime import Runtime
from nilometer.simulation.loop import ProcessGone
from nilometer.simulation.world import Process, World
from support.coordination.simulated_store import (
    TIMEOUT_MS,
)


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
