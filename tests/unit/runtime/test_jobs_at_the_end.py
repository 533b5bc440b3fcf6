"""Jobs of the disk's threads that end with the event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from nilometer.runtime.system_disk import SystemDisk


def fail() -> None:
    raise FileNotFoundError("there is no such file")


def test_a_job_that_fails_while_the_loop_ends_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that stops cancels what waits for the job."""
    disk, begins = SystemDisk(), threading.Event()

    def work() -> None:
        begins.wait(10)
        fail()

    async def main() -> None:
        waiting = asyncio.create_task(disk.offload(work))
        await asyncio.sleep(0)
        waiting.cancel()
        begins.set()
        time.sleep(0.05)  # noqa: ASYNC251  the job ends, and the loop takes note of it in its last turn

    asyncio.run(main())
    gc.collect()
    assert caplog.text == ""


def test_an_error_of_a_job_is_raised_with_its_place() -> None:
    with pytest.raises(FileNotFoundError) as raised:
        asyncio.run(SystemDisk().offload(fail))
    assert raised.traceback[-1].name == "fail"
