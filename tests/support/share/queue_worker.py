"""A worker of a queue as a process of its own, to be killed; its arguments: servers, queue, and what it does.

`hold`: takes a job, prints what it is, and ends it when it is told so by a line; then it prints `accepted`,
or the error. `exit`: its handler ends the process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import nilometer

TESTS = Path(__file__).parents[2]
EXIT_CODE = 17


async def hold(queue: nilometer.Queue[object]) -> None:
    async with queue.jobs() as jobs:
        job = await anext(jobs)
        try:
            async with job:
                print(f"took {job.value}", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
        except nilometer.LockLost as error:
            print("LockLost", error.name, flush=True)
        else:
            print("accepted", flush=True)


async def end_abruptly(queue: nilometer.Queue[object]) -> None:
    def handle(_job: nilometer.Job[object]) -> None:
        print("begun", flush=True)
        os._exit(EXIT_CODE)

    await queue.run(handle, until_idle="3s")


async def main(servers: str, name: str, how: str) -> None:
    async with nilometer.connect(servers) as kafka:
        await {"hold": hold, "exit": end_abruptly}[how](kafka.queue(name))


@contextmanager
def worker(servers: str, queue: str, how: str) -> Iterator[subprocess.Popen[str]]:
    """Run this module; kill the process at the end."""
    command = [sys.executable, "-m", "support.share.queue_worker", servers, queue, how]
    process = subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                _close(stream)


def _close(stream: IO[str]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        pass  # what was written last, to a process that is gone


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> None:
    """Have a worker that holds a job end it."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
