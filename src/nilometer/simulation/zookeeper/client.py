"""A client of the simulated ensemble that behaves as kazoo's: one connection at a time, one session.

It tries the servers in random order, each once, then pauses; requests made meanwhile are queued. When the
connection is lost, every request in flight fails with ``ConnectionLoss`` and every watch fires. Whether the
session has expired, the client learns from the next server that it connects to.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from nilometer.invariants import check
from nilometer.simulation.network import Fabric, NetworkUser
from nilometer.simulation.world import Process
from nilometer.simulation.zookeeper.messages import (
    Answer,
    Ask,
    Asked,
    ClientPing,
    End,
    Fired,
    GetAcl,
    GetChildren,
    GetData,
    GetExists,
    Hello,
    Pong,
    Welcome,
    dial,
)
from nilometer.simulation.zookeeper.server import CLIENT_PORT
from nilometer.simulation.zookeeper.tree import (
    CheckVersion,
    CloseSession,
    Code,
    CreateNode,
    DeleteNode,
    Event,
    Multi,
    NodeState,
    Refusal,
    SetAcl,
    SetData,
    Single,
    parent_of,
)

RETRY_S = (0.05, 0.25)
"""Seconds to pause after all servers were tried: the first pause, which doubles, and the longest."""
PING_EARLY_S = (0.01, 0.4)
STOP_PATIENCE_S = 10.0
THREADS_S = 0.002
"""Delay with which kazoo's threads may pass a callback to the event loop; each thread has its own."""


class ConnectionLoss(Exception):
    """The connection was lost before the response: the request may have been applied or not."""


class SessionExpired(Exception):
    pass


class Closed(Exception):
    """The client was stopped."""


class Phase(enum.Enum):
    CLOSED = "closed"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    EXPIRED = "expired"


@dataclass(eq=False, slots=True)
class Request:
    what: Asked
    size: int
    on_done: Callable[[Any, Exception | None], None]
    watch: Callable[[], None] | None = None


class OrderedCallbacks:
    """Runs callbacks on the event loop in the order of the calls, as one of kazoo's threads passes them on.

    One in ten, chosen at random, is delayed by ``THREADS_S``, and later ones wait for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        self._loop = loop
        self._chance = chance
        self._last_s = 0.0

    def run(self, callback: Callable[..., None], *args: Any) -> None:
        delay_s = THREADS_S if self._chance.random() < 0.1 else 0.0
        self._last_s = max(self._last_s, self._loop.time() + delay_s)
        self._loop.call_at(self._last_s, callback, *args)


class Client:
    def __init__(
        self,
        fabric: Fabric,
        process: NetworkUser,
        hosts: Sequence[str],
        timeout_ms: int,
        chance: random.Random,
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        user: str = "",
    ) -> None:
        self._user = user
        self._fabric = fabric
        self._process = process
        self._hosts = list(hosts)
        self._asked_ms = timeout_ms
        self._chance = chance
        self._states = OrderedCallbacks(fabric.loop, chance)
        self._answers = OrderedCallbacks(fabric.loop, chance)
        self._events = OrderedCallbacks(fabric.loop, chance)
        self._on_connected, self._on_lost = on_connected, on_lost
        self._phase = Phase.CLOSED
        self._stopped = False
        self._end: End | None = None
        self._queue: deque[Request] = deque()
        self._pending: deque[tuple[int, Request]] = deque()
        self._watches: dict[tuple[str, bool], list[Callable[[], None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[bool] | None = None
        """Done when the current connection ends; its result is True if the session was closed first."""
        self._welcomed: asyncio.Future[Welcome] | None = None
        self._last_zxid = 0
        self._xid = 0
        self._password = 0
        self._pause_s = RETRY_S[0]
        self._sent_s = 0.0
        self._woken_s = 0.0
        self._ping_is_out = False
        self._ping_timer: asyncio.TimerHandle | None = None
        self.live = asyncio.Event()
        self.session = 0
        self.server = ""
        self.timeout_ms = 0
        """The session timeout that the server granted; 0 before the first connection."""

    # ---- starting and stopping

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Close the session, and stop. Gives up after the longer of ``STOP_PATIENCE_S`` and the timeout."""
        if self._task is None or self._stopped:
            return
        self._stopped = True
        self._call(Request(CloseSession(), 0, _ignore_reply))
        await asyncio.wait([self._task], timeout=max(STOP_PATIENCE_S, self._asked_ms / 1000))
        self._task.cancel()

    # ---- requests

    def call(self, request: Request) -> None:
        """Send the request, or queue it until connected.

        ``on_done`` is called with the outcome, or with the error: Refusal, ConnectionLoss, SessionExpired,
        Closed.
        """
        if self._stopped:
            self._finish(request, None, Closed("the connection has been closed"))
        else:
            self._call(request)

    def _call(self, request: Request) -> None:
        match self._phase:
            case Phase.CLOSED if self._task is None or self._task.done():
                self._finish(request, None, Closed("the connection has been closed"))
            case Phase.EXPIRED:
                self._finish(request, None, SessionExpired("the session has ended"))
            case Phase.CONNECTED:
                self._send(request)
            case _:
                self._queue.append(request)

    def _send(self, request: Request) -> None:
        assert self._end is not None
        self._xid += 1
        self._pending.append((self._xid, request))
        self._end.send(Ask(self._xid, request.what, request.size), request.size)
        self._sent_s = self._woken_s = self._fabric.loop.time()

    def _finish(self, request: Request, outcome: Any, error: Exception | None) -> None:
        self._answers.run(request.on_done, outcome, error)

    # ---- the connection

    async def _run(self) -> None:
        while True:
            hosts = self._hosts[:]
            self._chance.shuffle(hosts)
            for host in hosts:
                if self._stopped:
                    self._enter(Phase.CLOSED)
                    return
                if self._phase is not Phase.CONNECTING:
                    self._enter(Phase.CONNECTING)
                if await self._attempt(host):
                    self._enter(Phase.CLOSED)
                    return
            await asyncio.sleep(self._pause_s * self._chance.uniform(0.6, 1.4))
            self._pause_s = min(2 * self._pause_s, RETRY_S[1])

    async def _attempt(self, host: str) -> bool:
        """Connect to ``host`` and wait until the connection ends; return True if the session was closed."""
        try:
            end = await dial(self._fabric, self._process, host, CLIENT_PORT, self._asked_ms / 1000)
        except OSError:
            return False
        loop = asyncio.get_running_loop()
        self._end, self._lost, self._welcomed = end, loop.create_future(), loop.create_future()
        end.on_message, end.on_closed = self._on_message, self._on_closed
        end.send(Hello(self._last_zxid, self._asked_ms, self.session, self._password, self._user))
        try:
            welcome = await self._greeted(self._welcomed)
            if welcome is None:
                return False
            if not welcome.timeout_ms:
                self._enter(Phase.EXPIRED)
                return False
            self._begin(host, welcome)
            in_order = await self._lost
            if not in_order:
                self._enter(Phase.CONNECTING)
            return in_order
        finally:
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            end.close()
            self._end = None

    async def _greeted(self, welcomed: asyncio.Future[Welcome]) -> Welcome | None:
        """Return the server's response to the handshake; None if it closed the connection or timed out."""
        try:
            async with asyncio.timeout(self._asked_ms / 1000 / len(self._hosts)):
                return await welcomed
        except (TimeoutError, ConnectionLoss):
            return None

    def _begin(self, host: str, welcome: Welcome) -> None:
        self.session, self._password = welcome.session, welcome.password
        self.timeout_ms, self.server = welcome.timeout_ms, f"{host}:{CLIENT_PORT}"
        self._pause_s, self._ping_is_out = RETRY_S[0], False
        self._enter(Phase.CONNECTED)
        while self._queue:
            self._send(self._queue.popleft())
        self._sent_s = self._woken_s = self._fabric.loop.time()
        self._arm()

    def _on_closed(self) -> None:
        if self._welcomed is not None and not self._welcomed.done():
            self._welcomed.set_exception(ConnectionLoss())
        self._drop()

    def _drop(self, *, in_order: bool = False) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(in_order)

    # ---- pings

    def _arm(self) -> None:
        """Arm the ping timer, as kazoo does.

        A ping is sent when nothing was sent for a third of the timeout. If the timer fires again and nothing
        came meanwhile, the connection is dropped.
        """
        early_s = self._chance.uniform(*PING_EARLY_S)
        due_s = max(self._sent_s + self.timeout_ms / 3000 - early_s, self._woken_s + early_s)
        self._ping_timer = self._fabric.loop.call_at(due_s, self._on_ping_timer, self._woken_s)

    def _on_ping_timer(self, woken_s: float) -> None:
        now = self._fabric.loop.time()
        if self._ping_is_out and self._woken_s == woken_s:
            self._drop()
            return
        if now >= self._sent_s + self.timeout_ms / 3000 - PING_EARLY_S[1]:
            assert self._end is not None
            self._ping_is_out = True
            self._end.send(Ask(0, ClientPing(), 20))
            self._sent_s = self._woken_s = now
        self._arm()

    # ---- messages of the server

    def _on_message(self, message: Any) -> None:
        self._woken_s = self._fabric.loop.time()
        match message:
            case Answer(xid, zxid, outcome):
                self._on_answer(xid, zxid, outcome)
            case Pong():
                self._ping_is_out = False
            case Fired(event, path):
                self._on_fired(event, path)
            case Welcome():
                if self._welcomed is not None and not self._welcomed.done():
                    self._welcomed.set_result(message)
            case _:
                raise AssertionError(f"a server does not say {message}")

    def _on_answer(self, xid: int, zxid: int, outcome: Any) -> None:
        asked, request = self._pending.popleft()
        check(asked == xid, "responses arrive in the order of the requests", asked, xid)
        self._last_zxid = max(zxid, self._last_zxid)
        if isinstance(outcome, Refusal):
            expired = outcome.code is Code.SESSION_EXPIRED
            self._finish(request, None, SessionExpired("the session has ended") if expired else outcome)
            return
        self._finish(request, outcome, None)
        if request.watch is not None:
            what: Any = request.what
            key = (what.path, isinstance(what, GetChildren))
            self._watches.setdefault(key, []).append(request.watch)
        if isinstance(request.what, CloseSession):
            self._drop(in_order=True)

    def _on_fired(self, event: Event, path: str) -> None:
        fired = [] if event is Event.CHILDREN else self._watches.pop((path, False), [])
        if event in (Event.CHILDREN, Event.DELETED):
            fired += self._watches.pop((path, True), [])
        for watch in fired:
            self._events.run(watch)

    # ---- phases

    def _enter(self, phase: Phase) -> None:
        before, self._phase = self._phase, phase
        if before is phase:
            return
        match phase:
            case Phase.CONNECTED:
                self.live.set()
                self._states.run(self._on_connected)
            case Phase.CONNECTING if before is Phase.CONNECTED:
                self.live.clear()
                self._fail_all(ConnectionLoss("the connection was lost"))
                self._fire_all()
            case Phase.EXPIRED | Phase.CLOSED:
                self.live.clear()
                if phase is Phase.EXPIRED:
                    self._states.run(self._on_lost)
                    self._fail_all(SessionExpired("the session has ended"))
                else:
                    self._fail_all(ConnectionLoss("the connection was closed"))
                self._fire_all()
                self.session = self._password = self._last_zxid = 0
            case _:
                pass

    def _fail_all(self, error: Exception) -> None:
        for request in [*(request for _, request in self._pending), *self._queue]:
            self._finish(request, None, error)
        self._pending.clear()
        self._queue.clear()

    def _fire_all(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in (each for fired in watches.values() for each in fired):
            self._events.run(watch)


def _ignore_reply(outcome: Any, error: Exception | None) -> None:
    """Ignore the outcome of the request that closes the session."""


# Implements ``nilometer.coordination.zookeeper.ensemble.Ensemble`` on a client of the simulated servers.

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
            case SetVersion(path, version, data):
                return SetData(self._full(path), data, version)
            case CheckExists(path, version):
                return CheckVersion(self._full(path), version)
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
