"""Processes that share a coordination store, for tests: starts, calls, kills, stops and continues them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

AGENT = Path(__file__).with_name("agent.py")
PATIENCE_S = 60
"""A wait that takes longer than this fails the test; it measures nothing."""
ZOOKEEPER_SESSION_MS = 4_500
"""Session timeout with ZooKeeper: long enough for a busy machine, short enough to wait for the end of one."""


class Refused(Exception):
    """An error of the store in a member process; ``kind`` is the name of its class."""

    def __init__(self, kind: str, message: str, number: int | None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.number = number


class Zygote:
    """The process from which members are forked."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nilometer-agents-")
        self.path = f"{self._folder.name}/socket"
        self._process = subprocess.Popen([sys.executable, str(AGENT), self.path], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._folder.cleanup()


class Caller(ABC):
    """Calls of a member, which uses the store on command."""

    @abstractmethod
    def start(self, method: str, *arguments: Any) -> asyncio.Future[Any]: ...

    async def call(self, method: str, *arguments: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            return await self.start(method, *arguments)

    async def refusal(self, method: str, *arguments: Any) -> Refused:
        """Return the error with which a call ends. Raises AssertionError if it succeeds."""
        try:
            result = await self.call(method, *arguments)
        except Refused as refused:
            return refused
        raise AssertionError(f"{method}{arguments} was not refused but returned {result!r}")

    async def until(self, method: str, wanted: Callable[[Any], bool]) -> Any:
        """Call ``method`` again after every change signal until ``wanted`` accepts the result; return it."""
        async with asyncio.timeout(PATIENCE_S):
            seen = -1
            while True:
                seen = await self.start("wait_changed", seen)
                answer = await self.start(method)
                if wanted(answer):
                    return answer


class Member(Caller):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        self._writer = writer
        self.pid = pid
        self._ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                answer = json.loads(line)
                call = self._calls.pop(answer["id"])
                if call.cancelled():
                    continue
                if "error" in answer:
                    call.set_exception(Refused(answer["error"], answer["message"], answer["number"]))
                else:
                    call.set_result(answer["result"])
        except ConnectionResetError:
            pass  # it was killed while it sent a response
        self.gone.set_result(None)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(ConnectionError("the member died"))

    def start(self, method: str, *arguments: Any) -> asyncio.Future[Any]:
        number = next(self._ids)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        request = {"id": number, "method": method, "arguments": arguments}
        self._writer.write(json.dumps(request).encode() + b"\n")
        return call

    async def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        await self.gone

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def is_stopped(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    async def wait_stopped(self) -> None:
        """Wait until the process has stopped itself; polls, since the kernel offers no event for that."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.is_stopped():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def dispose(self) -> None:
        if not self.gone.done():
            await self.kill()
        self._writer.close()
        await self._reading


class Cluster:
    """Starts members of one store. ``setting`` is a value of ``nilometer.coordination``."""

    def __init__(self, zygote: Zygote, kind: str, setting: str, session_timeout_ms: int) -> None:
        self._zygote = zygote
        self.kind = kind
        self.setting = setting
        self.session_timeout_ms = session_timeout_ms
        self._members: list[Member] = []

    async def start(
        self, broker_id: int | None = None, *, opened: bool = True, cluster_id: str | None = None
    ) -> Member:
        """Start a member process, open its store, and register it if ``broker_id`` is given."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._zygote.path)
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 26)
        first = {
            "setting": self.setting,
            "session_timeout_ms": self.session_timeout_ms,
            "cluster_id": cluster_id,
        }
        writer.write(json.dumps(first).encode() + b"\n")
        member = Member(reader, writer, json.loads(await reader.readline())["pid"])
        self._members.append(member)
        if opened:
            await member.call("open")
        if broker_id is not None:
            await member.call("register", broker_id, f"payload of {broker_id}")
        return member

    def run(self, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
        async def main() -> None:
            try:
                await scenario(self)
            finally:
                for member in self._members:
                    await member.dispose()
                self._members.clear()

        asyncio.run(main())
