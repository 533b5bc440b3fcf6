"""Implements ``nilometer.coordination.zookeeper.ensemble.Ensemble`` on a client of the simulated servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from nilometer.coordination.zookeeper.ensemble import (
    RECONNECT_S,
    AccessDenied,
    BadVersion,
    CheckExists,
    Create,
    Delete,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    SessionEnded,
    SetVersion,
    Step,
)
from nilometer.simulation.world import Process
from nilometer.simulation.zookeeper.client import Client, Request, SessionExpired
from nilometer.simulation.zookeeper.messages import Asked, GetAcl, GetChildren, GetData, GetExists
from nilometer.simulation.zookeeper.tree import (
    CheckVersion,
    Code,
    CreateNode,
    DeleteNode,
    Multi,
    NodeState,
    Refusal,
    SetAcl,
    SetData,
    Single,
    parent_of,
)

OVERHEAD_BYTES = 60
"""Bytes of a request besides its path and its data."""
ERRORS = {
    Code.NO_NODE: NoNode,
    Code.NODE_EXISTS: NodeExists,
    Code.BAD_VERSION: BadVersion,
    Code.NO_AUTH: AccessDenied,
}


class VirtualBridge:
    """An ``Ensemble`` whose requests go to the simulated servers."""

    def __init__(
        self,
        process: Process,
        hosts: Sequence[str],
        chroot: str,
        timeout_ms: int,
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        user: str = "",
        protects: bool = False,
    ) -> None:
        """``user``: the user that the client authenticates as; ``protects``: whether nodes get an ACL."""
        self.protects = protects
        self._user = user
        self._asked_ms = timeout_ms
        self._chroot = chroot
        self._stopped = False
        self._listeners = on_connected, on_lost
        world = process.world
        chance = random.Random(f"{world.seed}/zookeeper client/{process.name}/{process.pid}")
        self._client = Client(
            world.network, process, hosts, timeout_ms, chance, self._on_connected, self._on_lost, user
        )

    @property
    def session_id(self) -> int:
        return self._client.session if self._client.live.is_set() else 0

    @property
    def session_timeout_ms(self) -> int:
        return self._client.timeout_ms or self._asked_ms

    @property
    def server(self) -> str:
        return self._client.server

    async def start(self, timeout_s: float) -> None:
        self._client.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.live.wait()
        except TimeoutError as error:
            await self.stop()
            raise Disconnected(f"no server responded within {timeout_s:g} s") from error

    async def stop(self) -> None:
        self._stopped = True
        await self._client.stop()

    # ---- requests

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        node: NodeState = await self._ask(GetData(self._full(path), watch is not None), watch)
        return Node(node.data, node.version, node.created_zxid, node.owner)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        node: NodeState | None = await self._ask(GetExists(self._full(path), watch is not None), watch)
        return Node(b"", node.version, node.created_zxid, node.owner) if node is not None else None

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        return sorted(await self._ask(GetChildren(self._full(path), watch is not None), watch))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._call(CreateNode(self._full(path), data, ephemeral, self.protects))

    async def ensure(self, path: str) -> None:
        await self._ensure(self._full(path))

    async def is_protected(self, path: str) -> bool:
        node: NodeState = await self._ask(GetAcl(self._full(path)), None)
        return node.user != "" and node.user == self._user

    async def protect(self, path: str) -> None:
        await self._call(SetAcl(self._full(path)))

    async def set(self, path: str, data: bytes, version: int) -> None:
        await self._call(SetData(self._full(path), data, version))

    async def delete(self, path: str) -> None:
        await self._call(DeleteNode(self._full(path)))

    async def commit(self, steps: Sequence[Step]) -> None:
        await self._call(Multi(tuple(self._step(step) for step in steps)))

    def _step(self, step: Step) -> Single:
        match step:
            case Create(path, data, ephemeral):
                return CreateNode(self._full(path), data, ephemeral, self.protects)
            case SetVersion(path, version):
                return SetData(self._full(path), b"", version)
            case CheckExists(path):
                return CheckVersion(self._full(path))
            case Delete(path):
                return DeleteNode(self._full(path))

    async def _ensure(self, full: str) -> None:
        if await self._call(GetExists(full)) is not None:
            return
        if parent_of(full) != "/":
            await self._ensure(parent_of(full))
        shared = self._chroot.startswith(full + "/")  # above the chroot
        try:
            await self._call(CreateNode(full, b"", protected=self.protects and not shared))
        except NodeExists:
            pass  # another client created it first

    def _full(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or "/"

    async def _ask(self, what: Asked, watch: Callable[[], None] | None) -> Any:
        """Send a read and return its result; repeat it in the next session if the session ends meanwhile.

        Raises Disconnected after one session timeout.
        """
        timeout_s = self.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._call(what, watch)
                    except SessionEnded:
                        await asyncio.sleep(RECONNECT_S)
        except TimeoutError as error:
            raise Disconnected(f"no new session within {timeout_s:g} s") from error

    async def _call(self, what: Asked, watch: Callable[[], None] | None = None) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_done(outcome: Any, error: Exception | None) -> None:
            if future.done():
                return  # the caller was cancelled
            if error is not None:
                future.set_exception(_translated(error))
            else:
                future.set_result(outcome)

        self._client.call(Request(what, _size(what), on_done, watch))
        timeout_s = self.session_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise Disconnected(f"no answer within {timeout_s:g} s") from error

    # ---- connection states

    def _on_connected(self) -> None:
        if not self._stopped:
            self._listeners[0]()

    def _on_lost(self) -> None:
        if not self._stopped:
            self._listeners[1]()


def _translated(error: Exception) -> Exception:
    if isinstance(error, SessionExpired):
        return SessionEnded(str(error))
    if isinstance(error, Refusal) and error.code in ERRORS:
        return ERRORS[error.code](str(error))
    return Disconnected(f"{type(error).__name__} {error}".strip())


def _size(what: Asked) -> int:
    match what:
        case Multi(steps):
            return sum(_size(step) for step in steps)
        case CreateNode(path, data) | SetData(path, data):
            return OVERHEAD_BYTES + len(path) + len(data)
        case _:
            return OVERHEAD_BYTES
