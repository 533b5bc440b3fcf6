"""The world itself: time, processes, crashes, and that a seed tells everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from nilometer.runtime import Runtime
from nilometer.simulation import loop
from nilometer.simulation.loop import Deadlock, Livelock
from nilometer.simulation.world import World


def test_time_jumps_without_real_waits() -> None:
    async def scenario(world: World) -> float:
        await asyncio.sleep(3_600)
        return world.loop.time()

    assert World(1).run(scenario) == pytest.approx(3_600)


def test_nothing_to_wait_for_is_an_error_not_a_hang() -> None:
    world = World(1)
    with pytest.raises(Deadlock):
        world.loop.run_until_complete(world.loop.create_future())


def test_a_world_that_turns_without_time_moving_is_an_error_not_a_hang() -> None:
    async def scenario(world: World) -> None:
        while world.loop.time() < 1:  # noqa: ASYNC110 that is the point
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        World(1).run(scenario)


def test_a_world_that_is_busy_for_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "BUSY_CALLBACKS_PER_S", 50)

    async def scenario(world: World, busy_s: int) -> None:
        for _ in range(100):
            await asyncio.sleep(1)
        while world.loop.time() < 100 + busy_s:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    World(1).run(lambda world: scenario(world, loop.BUSY_S_MAX - 1))
    with pytest.raises(Livelock):
        World(1).run(lambda world: scenario(world, loop.BUSY_S_MAX + 5))


def test_a_scenario_that_takes_too_long_is_cut() -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(100)

    with pytest.raises(TimeoutError):
        World(1).run(scenario, limit_s=10)


def test_nothing_of_a_crashed_process_runs_again() -> None:
    said: list[str] = []

    async def main(runtime: Runtime) -> None:
        async def worker() -> None:
            try:
                while True:
                    await asyncio.sleep(1)
                    said.append("tick")
            finally:
                runtime.disk.make_directories("/cleaned")
                said.append("cleaned up")

        asyncio.get_running_loop().call_later(3.6, said.append, "timer")
        await asyncio.gather(worker(), asyncio.sleep(100))

    async def scenario(world: World) -> None:
        process = world.host("a").start("p", main)
        await asyncio.sleep(2.5)
        process.crash()
        await process.exited
        await asyncio.sleep(10)
        assert world.host("a").disk.find("/cleaned") is None, (
            "the dead change nothing, not even on their way out"
        )

    world = World(1)
    world.run(scenario)
    assert said == ["tick", "tick"]
    assert world.failures == []


def test_a_paused_process_goes_on_where_it_was() -> None:
    ticks: list[float] = []

    async def main(runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(runtime.clock.monotonic_ms())

    async def scenario(world: World) -> None:
        process = world.host("a").start("p", main)
        await asyncio.sleep(2.5)
        process.pause()
        await asyncio.sleep(10)
        assert len(ticks) == 2
        process.resume()
        await asyncio.sleep(1.6)
        assert len(ticks) == 4
        assert ticks[2] - ticks[1] == pytest.approx(10_500, abs=20)

    World(1).run(scenario)


def test_clocks_drift_and_jump_each_in_its_own_way() -> None:
    async def scenario(world: World) -> None:
        fast, slow = world.host("fast").clock, world.host("slow").clock
        fast.rate, slow.rate = 1.001, 0.999
        start = fast.monotonic_ms(), slow.monotonic_ms()
        wall = slow.wall_ms()
        await asyncio.sleep(1000)
        assert fast.monotonic_ms() - start[0] == pytest.approx(1_001_000, abs=2)
        assert slow.monotonic_ms() - start[1] == pytest.approx(999_000, abs=2)
        slow.skew_ms -= 5_000_000
        assert slow.wall_ms() < wall
        assert slow.monotonic_ms() > start[1]

    World(1).run(scenario)


def test_chance_is_a_function_of_seed_and_incarnation() -> None:
    def draws(seed: int) -> list[Any]:
        found: list[Any] = []

        async def main(runtime: Runtime) -> None:
            found.append((runtime.entropy.uuid(), runtime.entropy.below(1 << 60)))

        async def scenario(world: World) -> None:
            for _ in range(2):
                await world.host("a").start("p", main).exited

        World(seed).run(scenario)
        return found

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert len(set(draws(1))) == 2, "each incarnation draws its own"


def test_main_that_fails_ends_its_process_with_the_error() -> None:
    async def main(runtime: Runtime) -> None:
        raise ValueError("no")

    async def scenario(world: World) -> None:
        assert isinstance(await world.host("a").start("p", main).exited, ValueError)

    World(1).run(scenario)


def test_threads_and_sockets_are_refused() -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="no threads"):
            await loop.run_in_executor(None, print)
        with pytest.raises(RuntimeError, match="no sockets"):
            await loop.create_connection(asyncio.Protocol, "127.0.0.1", 1)

    async def scenario(world: World) -> None:
        assert await world.host("a").start("p", main).exited is None

    World(1).run(scenario)


BUSY = """
import sys
sys.path.insert(0, {tests!r})
from support.simulation.determinism_sample import busy_world
print(busy_world(int(sys.argv[1])))
"""


def test_same_seed_same_trace__in_any_process_and_hash_seed() -> None:
    from support.simulation.determinism_sample import busy_world

    script = BUSY.format(tests=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found = {
        subprocess.run(
            [sys.executable, "-c", script, "7"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1", "4242")
    }
    assert found == {busy_world(7)} == {busy_world(7)}
    assert busy_world(8) not in found
