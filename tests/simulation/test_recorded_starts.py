"""What a recorded process is told is told again, and it does the same: in a simulated world, where everything
that may come in between can be had."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing

import pytest

from nilometer.recorder.recording import record
from nilometer.recorder.replaying import Diverged, Replay
from nilometer.recorder.tape import Header, MemoryFile, Tape
from nilometer.runtime import Runtime
from nilometer.runtime.object_store import ObjectStoreError
from nilometer.simulation.object_store import StoreFaults
from nilometer.simulation.plan import LOCAL, Kind, draw
from nilometer.simulation.run import RECORDED, run
from nilometer.simulation.world import World

HEADER = Header(
    source="", version="", python="", settings={}, started_ms=0, started_monotonic_ms=0, open_files_max=0
)


def record_and_replay(
    main: Callable[[Runtime], object], world: World | None = None, folders: Sequence[str] = ()
) -> None:
    """Record ``main`` as a process, and replay it to its end."""
    world = world or World(1)
    file = MemoryFile(HEADER)

    async def run(world: World) -> None:
        def begin(runtime: Runtime) -> object:
            return record(lambda recorded, _: main(recorded), runtime, Tape(file), folders)  # type: ignore

        assert await world.host("machine").start("recorded", begin).exited is None  # type: ignore

    world.run(run, limit_s=60)
    assert world.failures == []
    with closing(Replay(iter(file.frames[1:]), folders)) as replay:
        assert not replay.run(main, 0)  # type: ignore
        assert replay.ended == "the broker has ended"


@pytest.mark.parametrize("delay_s", [0.0, 0.0003, 0.001, 0.0017])
def test_a_timer_comes_when_it_is_due(delay_s: float) -> None:
    async def main(runtime: Runtime) -> None:
        for _ in range(3):
            due = asyncio.Event()
            asyncio.get_running_loop().call_later(delay_s, due.set)
            await due.wait()
            runtime.clock.monotonic_us()

    record_and_replay(main)


def test_a_job_of_the_same_thread_makes_calls_of_its_own() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk

        def work() -> int:
            disk.make_directories("/data")
            file = disk.open("/data/file", create=True)
            file.append([b"content"])
            file.sync()
            return runtime.clock.wall_ms()

        job = asyncio.ensure_future(disk.offload(work))
        while not job.done():
            runtime.clock.monotonic_us()
            await asyncio.sleep(0.001)

    world = World(1)
    world.host("machine").disk.offload_ms = (2.0, 5.0)
    record_and_replay(main, world)


def test_a_write_to_a_connection_that_is_closed_fails_again() -> None:
    failures: list[str] = []

    async def main(runtime: Runtime) -> None:
        listener = await runtime.network.listen(asyncio.Protocol, "127.0.0.1", 0)
        await listener.start()
        made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

        class Client(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(transport)  # type: ignore[arg-type]

        await runtime.network.connect(Client, "127.0.0.1", listener.port)
        transport = await made
        transport.abort()
        for write in (lambda: transport.write(b"x"), lambda: transport.writelines([b"y", b"z"])):
            with pytest.raises(RuntimeError, match="the handler is closed") as failed:
                write()
            failures.append(str(failed.value))

    record_and_replay(main)
    assert len(failures) == 4


@pytest.mark.parametrize("cancels", [False, True])
def test_an_upload_that_fails_leaves_no_part_behind(cancels: bool) -> None:
    ended: list[bool] = []

    async def main(runtime: Runtime) -> None:
        async def parts() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    await asyncio.sleep(0.01)
                    yield b"part"
            finally:
                ended.append(True)
                runtime.clock.wall_ms()

        store = runtime.open_object_store("", "")
        with pytest.raises(TimeoutError if cancels else ObjectStoreError):
            async with asyncio.timeout(0.055), aclosing(parts()) as content:
                await store.upload("object", content)

    world = World(1)
    world.bucket.faults = StoreFaults(refused=0.0 if cancels else 0.7)
    record_and_replay(main, world)
    assert ended == [True, True]


def test_a_file_that_something_else_has_changed_is_told_from_a_fault_of_the_broker() -> None:
    world = World(1)

    async def main(runtime: Runtime) -> None:
        runtime.disk.make_directories("/data")
        file = runtime.disk.open("/data/file", create=True)
        file.append([b"content"])
        if not world.is_over:
            world.host("machine").disk.file("/data/file").flip_bit(3)
        file.read_at(0, 3)
        file.read_at(2, 3)

    with pytest.raises(Diverged, match="read of 3 bytes at 2, which were not those that the broker wrote"):
        record_and_replay(main, world, ["/data"])


def test_what_comes_in_after_the_end_is_replayed() -> None:
    async def main(runtime: Runtime) -> None:
        store = runtime.open_object_store("", "")

        async def put(turns: int) -> None:
            for _ in range(turns):
                await asyncio.sleep(0)
            for _ in range(20):
                await store.put("object", b"")

        others = [asyncio.create_task(put(turns)) for turns in range(10)]
        await store.put("object", b"")
        assert not any(other.done() for other in others)

    record_and_replay(main)


# Whole clusters: `nilometer simulate --seed N --minutes M --store local --check-recordings` plays one again.

QUICK, THOROUGH = (0, 1, 4), (2, 3)
SHORT_MINUTES = 0.1
FIRST, COUNT, AT_ONCE = 5000, 1000, 20
MINUTES = 0.33


def _differences(seed: int, minutes: float) -> list[str]:
    plan = draw(seed, minutes, store=LOCAL)
    verdict = run(plan, checks_recordings=True)
    assert verdict.workloads[RECORDED] >= 3 or Kind.INVARIANT in plan.kinds
    return verdict.findings


@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in THOROUGH)]
)
def test_every_start_of_a_cluster_is_replayed(seed: int) -> None:
    assert _differences(seed, SHORT_MINUTES) == []


@pytest.mark.thorough
def test_no_checker_asks_a_leader_whose_session_may_look_at_its_disk() -> None:
    assert _differences(4091, 0.2) == []


@pytest.mark.soak
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, AT_ONCE))
def test_every_start_of_many_clusters_is_replayed(first: int) -> None:
    found = {seed: _differences(seed, MINUTES) for seed in range(first, first + AT_ONCE)}
    assert {seed: findings for seed, findings in found.items() if findings} == {}
