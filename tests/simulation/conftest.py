from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nilometer.runtime import Runtime
from nilometer.simulation.world import World
from support.simulation.seam_scenarios import Play, Scenario


@pytest.fixture(params=["system", "virtual"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Plays a scenario of the seam's contract on the system's runtime, and on the simulated one."""

    def on_system(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await scenario(Runtime.system(), str(tmp_path))

        asyncio.run(main())

    def in_world(scenario: Scenario) -> None:
        async def main(runtime: Runtime) -> None:
            runtime.disk.make_directories("/folder")
            await scenario(runtime, "/folder")

        async def whole(world: World) -> None:
            error = await world.host("a").start("p", main).exited
            if error is not None:
                raise error

        world = World(11)
        world.run(whole)
        assert world.failures == []

    return on_system if request.param == "system" else in_world
