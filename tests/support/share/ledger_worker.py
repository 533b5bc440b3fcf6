"""A process with several workers of a queue, which writes what it has done to a file; it is to be killed.

Arguments: servers, queue, file, how many workers. A job's value has its number, and what becomes of it:
`good` is done, `flaky` fails once, `poison` always fails.

The number of a job is written before the handler returns, so that a job that was accepted has its line.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nilometer

TESTS = Path(__file__).parents[2]
GOOD, FLAKY, POISON = "good", "flaky", "poison"
JOBS_AT_ONCE = 4
PAUSES = nilometer.Backoff(0.05, 0.5)


async def work(servers: str, name: str, path: str, workers: int) -> None:
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def handle(job: nilometer.Job[Any]) -> None:
        await asyncio.sleep(0.02)
        kind = job.value["kind"]
        if kind == POISON or (kind == FLAKY and job.deliveries == 1):
            raise ValueError(kind)
        os.write(ledger, b"%d\n" % job.value["number"])

    async with AsyncExitStack() as stack:
        queues = [
            (await stack.enter_async_context(nilometer.connect(servers))).queue(name) for _ in range(workers)
        ]
        await asyncio.gather(
            *(queue.run(handle, concurrency=JOBS_AT_ONCE, pauses=PAUSES) for queue in queues)
        )


def start(servers: str, queue: str, path: Path, workers: int) -> subprocess.Popen[bytes]:
    """Start this module as a process; what it logs is in a file beside ``path``."""
    command = [sys.executable, "-m", "support.share.ledger_worker", servers, queue, str(path), str(workers)]
    with path.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=TESTS, stdout=log, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
