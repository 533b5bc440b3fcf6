"""Jobs on real threads, which find the state of the event loop as it is at their place on the tape."""

from __future__ import annotations

import asyncio
from contextlib import closing

from nilometer.recorder.recording import record
from nilometer.recorder.replaying import Replay
from nilometer.recorder.tape import Header, MemoryFile, Tape
from nilometer.runtime import Runtime

HEADER = Header(
    source="", version="", python="", settings={}, started_ms=0, started_monotonic_ms=0, open_files_max=0
)
LOOKS = 300


async def count_while_jobs_look(runtime: Runtime) -> None:
    count = 0

    def look() -> None:
        for _ in range(LOOKS):
            runtime.disk.exists(f"/nowhere/{count}")

    jobs = [asyncio.ensure_future(runtime.disk.offload(look)) for _ in range(3)]
    while not all(job.done() for job in jobs):
        await asyncio.sleep(0)
        count += 1
        runtime.clock.monotonic_us()


def test_a_job_finds_the_same_state_in_replay() -> None:
    file = MemoryFile(HEADER)
    asyncio.run(record(lambda runtime, _: count_while_jobs_look(runtime), Runtime.system(), Tape(file), ()))
    with closing(Replay(iter(file.frames[1:]), ())) as replay:
        assert not replay.run(count_while_jobs_look, 0)
        assert replay.ended == "the broker has ended"
