"""A process that uses a coordination store on command: it reads one call per line from a Unix socket.

Run as a script it is a *zygote*: it imports everything once, and forks a member process for each connection,
so that tests can use many processes. A member can be told to kill or stop itself before its n-th disk
operation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import sys
from typing import Any

import nilometer.coordination.zookeeper.kazoo_bridge  # noqa: F401  # loaded before the fork
from nilometer.coordination.factory import make_store
from nilometer.coordination.store import (
    CoordinationError,
    CoordinationStore,
    EntriesRetired,
    OutcomeUnknown,
    Session,
)
from nilometer.runtime import Runtime
from nilometer.runtime.system_disk import SystemDisk

BACKGROUND = frozenset({"write_at", "is_locked", "exists", "list_directory", "read_file"})
"""Disk operations that are not counted: those of the store's background loops, and reads."""


class FaultyDisk:
    """Counts the operations of a disk, and sends a signal to this process at the chosen one."""

    def __init__(self, disk: Any, hits: FaultPlan) -> None:
        self._disk = disk
        self._hits = hits

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name in ("offload", "watch") or not callable(found):
            return found

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._hits.step(name, args)
            result = found(*args, **kwargs)
            return FaultyDisk(result, self._hits) if name == "open" else result

        return counted


class FaultPlan:
    def __init__(self) -> None:
        self.armed = False
        self.strike_at = -1
        self.signal = signal.SIGKILL
        self.steps: list[str] = []

    def step(self, name: str, args: tuple[Any, ...]) -> None:
        if not self.armed or (name in BACKGROUND):
            return
        if len(self.steps) == self.strike_at:
            self.armed = False
            os.kill(os.getpid(), self.signal)
        self.steps.append(name)


class Agent:
    def __init__(self, setting: str, session_timeout_ms: int, cluster_id: str | None) -> None:
        self.plan = FaultPlan()
        system = Runtime.system()
        runtime = Runtime(system.clock, FaultyDisk(SystemDisk(), self.plan), system.network, system.entropy)  # type: ignore[arg-type]
        self.store: CoordinationStore = make_store(
            setting, runtime, local_folder="", session_timeout_ms=session_timeout_ms, cluster_id=cluster_id
        )
        self.session: Session | None = None

    async def open(self) -> str:
        await self.store.open()
        return self.store.cluster_id

    async def close(self) -> None:
        await self.store.close()

    async def append(self, number: int, data: str) -> bool:
        return await self.store.append(number, data.encode())

    async def append_of_size(self, number: int, size: int) -> bool:
        return await self.store.append(number, b"x" * size)

    async def append_at_step(self, number: int, data: str, strike_at: int, kind: int) -> bool:
        self.plan.strike_at, self.plan.signal, self.plan.steps = strike_at, signal.Signals(kind), []
        self.plan.armed = True
        try:
            return await self.store.append(number, data.encode())
        finally:
            self.plan.armed = False

    async def snapshot_at_step(self, number: int, strike_at: int, kind: int) -> bool:
        self.plan.strike_at, self.plan.signal, self.plan.steps = strike_at, signal.Signals(kind), []
        self.plan.armed = True
        try:
            return await self.store.write_snapshot(number, b"snapshot")
        finally:
            self.plan.armed = False

    async def steps(self) -> list[str]:
        return self.plan.steps

    async def append_next(self, data: str, count: int) -> list[int]:
        """Append ``count`` entries in competition with other members; return their numbers."""
        won: list[int] = []
        number = 0
        while len(won) < count:
            try:
                for entry in await self.store.read(number, 1000):
                    number = entry.number + 1
            except EntriesRetired as retired:
                number = retired.snapshot_number
                continue
            if await self._win(number, f"{data}-{len(won)}".encode()):
                won.append(number)
        return won

    async def _win(self, number: int, data: bytes) -> bool:
        """Append one entry; return whether it was appended. If the outcome is unknown, read the entry.

        If a snapshot covers the number by then, the entry was appended before.
        """
        try:
            return await self.store.append(number, data)
        except OutcomeUnknown:
            try:
                found = await self.store.read(number, 1)
            except EntriesRetired:
                return True
            return bool(found) and found[0].data == data

    async def read(self, first: int, limit: int) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        while batch := await self.store.read(first, limit - len(found)) if len(found) < limit else []:
            found += [(entry.number, entry.data.decode()) for entry in batch]
            first = batch[-1].number + 1
        return found

    async def sync(self) -> None:
        await self.store.sync()

    async def follow(self, first: int, end: int) -> list[tuple[int, str]]:
        """Read the entries from ``first`` up to ``end``, waiting for the change signal between reads."""
        found: list[tuple[int, str]] = []
        seen = -1
        while first < end:
            seen = await self.store.wait_changed(seen)
            while batch := await self.read(first, 7):
                found += batch
                first = batch[-1][0] + 1
        return found

    async def snapshot(self) -> tuple[int, str] | None:
        found = await self.store.read_snapshot()
        return (found.number, base64.b64encode(found.data).decode()) if found else None

    async def write_snapshot(self, number: int, data: str) -> bool:
        return await self.store.write_snapshot(number, base64.b64decode(data))

    async def register(self, broker_id: int, payload: str) -> int:
        self.session = await self.store.register(broker_id, payload.encode())
        return self.session.name.incarnation

    async def sessions(self) -> list[tuple[int, int, str]]:
        return [(s.broker_id, s.incarnation, s.payload.decode()) for s in await self.store.sessions()]

    async def claim(self) -> bool:
        return await self.store.claim_controller()

    async def resign(self) -> None:
        await self.store.resign_controller()

    async def controller(self) -> tuple[int, int] | None:
        found = await self.store.controller()
        return (found.broker_id, found.incarnation) if found else None

    async def secret(self) -> tuple[int, str] | None:
        found = await self.store.read_secret()
        return (found.number, found.data.decode()) if found else None

    async def put_secret(self, number: int, data: str) -> bool:
        return await self.store.put_secret(number, data.encode())

    async def wait_changed(self, seen: int) -> int:
        return await self.store.wait_changed(seen)

    async def wait_lost(self) -> str:
        assert self.session is not None
        return await self.session.wait_lost()

    async def is_live(self) -> bool:
        assert self.session is not None
        return self.session.is_live()

    async def expire_session_at_the_client(self) -> None:
        """Have the client believe that its session expired, while it goes on at the servers.

        A ZooKeeper server that is cut off from the others can tell it so.
        """
        from kazoo.protocol.connection import _SESSION_EXPIRED

        client: Any = self.store._ensemble._client  # type: ignore[attr-defined]
        client._call(_SESSION_EXPIRED, client.handler.async_result())

    async def block(self, seconds: float) -> None:
        """Block the event loop, as a long garbage collection or a page fault would."""
        import time

        time.sleep(seconds)  # noqa: ASYNC251


async def serve(connection: socket.socket) -> None:
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 26)
    first = json.loads(await reader.readline())
    agent = Agent(first["setting"], first["session_timeout_ms"], first["cluster_id"])
    tasks: set[asyncio.Task[None]] = set()

    async def call(request: dict[str, Any]) -> None:
        try:
            answer = {"result": await getattr(agent, request["method"])(*request["arguments"])}
        except (CoordinationError, ValueError) as error:
            answer = {
                "error": type(error).__name__,
                "message": str(error),
                "number": getattr(error, "snapshot_number", None),
            }
        writer.write(json.dumps({"id": request["id"], **answer}).encode() + b"\n")

    writer.write(json.dumps({"pid": os.getpid()}).encode() + b"\n")
    while line := await reader.readline():
        task = asyncio.get_running_loop().create_task(call(json.loads(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def zygote(path: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    parent = os.getppid()
    listener.settimeout(1)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            try:
                asyncio.run(serve(connection))
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    zygote(sys.argv[1])
