"""Runs ingest from real files into a LogCluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nilometer.client.ingest.ingest import Ingest
from nilometer.client.ingest.ledger import IngestOptions
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk
from support.scripted.log_cluster import LogCluster

QUICK = {
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 4,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 4,
    "linger.ms": 1,
    "batch.size": 500,
}


class Crash(BaseException):
    """Simulates the end of the process."""


class CrashingDisk(SystemDisk):
    """Raises Crash instead of writing the state for the ``n``-th time."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self._left = n

    def replace_file(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._left -= 1
        if self._left == 0:
            raise Crash
        super().replace_file(path, data, sync=sync)


def ingest_of(
    cluster: LogCluster, folder: Path, *paths: Path, disk: SystemDisk | None = None, **options: Any
) -> Ingest:
    system = Runtime.system()
    runtime = Runtime(system.clock, disk or SystemDisk(), system.network, system.entropy)
    given = [str(path) for path in paths or (folder / "logs",)]
    state = str(folder / "state" / "ingest.json")
    config = {"bootstrap.servers": cluster.addresses, **QUICK}
    return Ingest(runtime, config, IngestOptions(paths=given, topic="t", state_path=state, **options))


def lines_in(cluster: LogCluster) -> list[tuple[str, int, bytes]]:
    """Return (file name, line number, content) of all records, sorted."""
    found: list[tuple[str, int, bytes]] = []
    for _, log in sorted(cluster.logs.items(), key=lambda item: item[0]):
        for record in log.records():
            headers = {name: value or b"" for name, value in record.headers}
            assert sorted(headers) == ["line", "path", "source"]
            name = os.path.basename(headers["path"].decode())
            found.append((name, int(headers["line"]), record.value or b""))
    return sorted(found)


def write_lines(path: Path, lines: list[str], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(line + "\n" for line in lines)


@asynccontextmanager
async def following(ingest: Ingest) -> AsyncIterator[Callable[[int], Any]]:
    """Run ingest with ``follow`` during the block; yield a function that waits for a number of sent lines."""
    task = asyncio.create_task(ingest.run())

    async def sent(count: int) -> None:
        async with asyncio.timeout(60):
            while ingest.totals.lines < count:
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)

    try:
        yield sent
    finally:
        ingest.stop()
        await task
