"""Offloaded work in the virtual world: what happens between two of its disk calls, and to its fsyncs."""

from __future__ import annotations

import asyncio

import pytest

from nilometer.runtime import Disk, Runtime
from nilometer.simulation.faults import wait_for_work
from nilometer.simulation.loop import Pace
from nilometer.simulation.world import World

ALWAYS = Pace(pause_share=1.0, pause_ms=(1.0, 1.0), sync_ms=(50.0, 50.0))


def _world(pace: Pace = ALWAYS) -> World:
    world = World(7)
    world.host("a").disk.pace = pace
    return world


def _content(world: World, path: str) -> bytes:
    return bytes(world.host("a").disk.file(path).data)


def test_two_jobs_and_the_loop_take_turns() -> None:
    async def main(runtime: Runtime) -> None:
        file = runtime.disk.open("/lines", create=True)

        def write(letter: bytes) -> None:
            for _ in range(3):
                file.append([letter])

        both = asyncio.gather(
            runtime.disk.offload(lambda: write(b"a")), runtime.disk.offload(lambda: write(b"b"))
        )
        await asyncio.sleep(0.0025)
        file.append([b"-"])
        await both

    async def scenario(world: World) -> None:
        assert await world.host("a").start("p", main).exited is None
        written = _content(world, "/lines")
        assert sorted(written) == sorted(b"aaabbb-")
        assert written not in (b"aaabbb-", b"-aaabbb", b"bbbaaa-", b"-bbbaaa")

    world = _world()
    world.run(scenario)
    assert world.failures == []


def test_replacements_of_one_file_that_take_turns_all_succeed() -> None:
    contents = [b"a" * 5_000, b"b" * 5_000]

    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.make_directories("/folder")
        await asyncio.gather(
            *(disk.offload(lambda data=data: disk.replace_file("/folder/file", data)) for data in contents)
        )
        assert disk.list_directory("/folder") == ["file"]

    async def scenario(world: World) -> None:
        assert await world.host("a").start("p", main).exited is None
        assert _content(world, "/folder/file") in contents

    world = _world()
    world.run(scenario)
    assert world.failures == []


def test_work_is_atomic_but_for_fsyncs_where_no_pause_is_drawn() -> None:
    async def main(runtime: Runtime) -> None:
        file = runtime.disk.open("/lines", create=True)

        def write() -> None:
            file.append([b"a"])
            file.append([b"a"])
            file.sync()
            file.append([b"a"])

        job = asyncio.ensure_future(runtime.disk.offload(write))
        await asyncio.sleep(0.020)
        file.append([b"-"])
        await job

    async def scenario(world: World) -> None:
        await world.host("a").start("p", main).exited
        assert _content(world, "/lines") == b"aa-a"

    _world(Pace(sync_ms=(50.0, 50.0))).run(scenario)


def test_an_fsync_keeps_what_was_there_when_it_began() -> None:
    async def main(runtime: Runtime) -> None:
        runtime.disk.make_directories("/f")
        file = runtime.disk.open("/f/lines", create=True)
        file.append([b"before"])
        sync = asyncio.ensure_future(runtime.disk.offload(file.sync))
        await asyncio.sleep(0.020)
        file.append([b"meanwhile"])
        await sync

    async def scenario(world: World) -> None:
        await world.host("a").start("p", main).exited
        file = world.host("a").disk.file("/f/lines")
        assert bytes(file.data) == b"beforemeanwhile"
        assert file.durable() == b"before"

    _world().run(scenario)


def test_a_folder_sync_keeps_the_names_that_were_there_when_it_began() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.make_directories("/f")
        disk.open("/f/before", create=True).close()
        sync = asyncio.ensure_future(disk.offload(lambda: disk.sync_directory("/f")))
        await asyncio.sleep(0.020)
        disk.open("/f/meanwhile", create=True).close()
        await sync

    def names_after_power_loss(seed: int) -> list[str]:
        world = World(seed)
        world.host("a").disk.pace = ALWAYS

        async def scenario(world: World) -> list[str]:
            host = world.host("a")
            host.disk.root.sync()
            await host.start("p", main).exited
            host.disk.root.sync()  # the folder's own name
            host.power_off()
            return sorted(host.disk.folder("/f").entries)

        return world.run(scenario)

    assert {tuple(names_after_power_loss(seed)) for seed in range(20)} == {
        ("before",),
        ("before", "meanwhile"),
    }


class _Unwound:
    """A job that does more on its way out: what of it reached the disk, and what it met there."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.met: list[str] = []

    def work(self) -> None:
        file = self.disk.open("/lines", create=True)
        try:
            for _ in range(1000):
                file.append([b"a"])
        finally:
            try:
                file.append([b"the last"])
            except BaseException as error:
                self.met.append(type(error).__name__)
                raise


@pytest.mark.parametrize("how", ["crash", "power"])
def test_a_job_of_a_dead_process_does_nothing_more(how: str) -> None:
    jobs: list[_Unwound] = []

    async def main(runtime: Runtime) -> None:
        jobs.append(_Unwound(runtime.disk))
        await runtime.disk.offload(jobs[0].work)

    async def scenario(world: World) -> None:
        host = world.host("a")
        process = host.start("p", main)
        await asyncio.sleep(0.050)
        host.disk.root.sync()
        written = _content(world, "/lines")
        assert 10 < len(written) < 100
        if how == "crash":
            process.crash()
        else:
            host.power_off()
        await asyncio.sleep(1)
        assert written.startswith(_content(world, "/lines"))
        assert process.jobs == {}

    world = _world()
    world.run(scenario)
    assert jobs[0].met == ["ProcessGone"]
    assert world.failures == []


def test_a_job_of_a_paused_process_stands_still() -> None:
    async def main(runtime: Runtime) -> None:
        def work() -> None:
            file = runtime.disk.open("/lines", create=True)
            for _ in range(20):
                file.append([b"a"])

        await runtime.disk.offload(work)

    async def scenario(world: World) -> None:
        process = world.host("a").start("p", main)
        await asyncio.sleep(0.010)
        process.pause()
        before = _content(world, "/lines")
        await asyncio.sleep(1)
        assert _content(world, "/lines") == before
        process.resume()
        await process.exited
        assert len(_content(world, "/lines")) == 20

    _world().run(scenario)


def test_a_crash_during_work_finds_a_part_of_it_done() -> None:
    """The temporary file is there, its rename is not: only a moment inside of the job shows that."""

    async def main(runtime: Runtime) -> None:
        runtime.disk.make_directories("/f")
        while True:
            await runtime.disk.offload(lambda: runtime.disk.replace_file("/f/x", b"1"))
            await asyncio.sleep(0.010)

    def names_left(seed: int) -> int:
        async def scenario(world: World) -> int:
            process = world.host("a").start("p", main)
            await asyncio.sleep(0.010)
            await wait_for_work(world.host("a").disk, "p", world.chance, 1.0)
            process.crash()
            return len(world.host("a").disk.folder("/f").entries)

        return World(seed).run(scenario)

    assert {names_left(seed) for seed in range(20)} == {1, 2}
