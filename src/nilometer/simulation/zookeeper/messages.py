"""The messages between servers, and between clients and servers, and the connections that carry them in
order.
"""

from __future__ import annotations

import asyncio
import enum
import errno
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from nilometer.simulation.network import Attempt, Fabric, NetworkUser
from nilometer.simulation.zookeeper.tree import DataTree, Event, NodeState, Operation, Refusal, Transaction

Origin = tuple[int, int]
"""(server, request): the server with the waiting client, and the request's number at that server."""

# ---- the election


class State(enum.Enum):
    LOOKING = "looking"
    FOLLOWING = "following"
    LEADING = "leading"


class Vote(msgspec.Struct, frozen=True, order=True):
    """A vote for ``server``. The greatest wins: by epoch, then by the log's last zxid."""

    epoch: int
    zxid: int
    server: int


class Notification(msgspec.Struct, frozen=True):
    sender: int
    round: int
    vote: Vote
    state: State


# ---- a follower to its leader


class FollowerInfo(msgspec.Struct, frozen=True):
    server: int
    accepted_epoch: int


class AckEpoch(msgspec.Struct, frozen=True):
    current_epoch: int
    last_zxid: int
    counts: bool
    """False if the follower had accepted this epoch before: the message then adds nothing to the majority."""


class AckNewLeader(msgspec.Struct, frozen=True):
    pass


class Ack(msgspec.Struct, frozen=True):
    zxid: int


class Forward(msgspec.Struct, frozen=True):
    session: int
    operation: Operation
    origin: Origin


class Revalidate(msgspec.Struct, frozen=True):
    session: int
    request: int


class PingReply(msgspec.Struct, frozen=True):
    touched: tuple[int, ...]
    """The sessions from which the follower has heard since its last response."""


# ---- a leader to its follower


class LeaderInfo(msgspec.Struct, frozen=True):
    epoch: int


class Synchronise(msgspec.Struct, frozen=True):
    """Makes a follower's log equal to the leader's.

    The follower truncates its log to ``truncate_to``, or loads ``snapshot`` if there is one; then it appends
    ``transactions``.
    """

    truncate_to: int
    transactions: tuple[Transaction, ...]
    snapshot: DataTree | None = None


class NewLeader(msgspec.Struct, frozen=True):
    epoch: int


class UpToDate(msgspec.Struct, frozen=True):
    pass


class Propose(msgspec.Struct, frozen=True):
    transaction: Transaction


class Commit(msgspec.Struct, frozen=True):
    zxid: int


class Revalidated(msgspec.Struct, frozen=True):
    request: int
    timeout_ms: int
    """The session's timeout; 0 if the session has ended."""


class Ping(msgspec.Struct, frozen=True):
    pass


# ---- a client to its server


class Hello(msgspec.Struct, frozen=True):
    last_zxid: int
    timeout_ms: int
    session: int
    password: int
    user: str = ""
    """The user that the client authenticates as: in place of a request of its own."""


class GetAcl(msgspec.Struct, frozen=True):
    path: str


class GetData(msgspec.Struct, frozen=True):
    path: str
    watch: bool = False


class GetExists(msgspec.Struct, frozen=True):
    path: str
    watch: bool = False


class GetChildren(msgspec.Struct, frozen=True):
    path: str
    watch: bool = False


class ClientPing(msgspec.Struct, frozen=True):
    pass


Read = GetAcl | GetData | GetExists | GetChildren
Asked = Read | ClientPing | Operation


class Ask(msgspec.Struct, frozen=True):
    xid: int
    what: Asked
    size: int


# ---- a server to its client


class Welcome(msgspec.Struct, frozen=True):
    session: int
    timeout_ms: int
    """The negotiated session timeout; 0 if the session has ended."""
    password: int


class Answer(msgspec.Struct, frozen=True):
    xid: int
    zxid: int
    """The newest transaction that the server has applied."""
    outcome: NodeState | list[str] | Refusal | None


class Fired(msgspec.Struct, frozen=True):
    event: Event
    path: str


class Pong(msgspec.Struct, frozen=True):
    pass


# A simulated connection between two processes that carries messages in order, on the links of the fabric.
#
# It behaves as TCP: a message sent into a cut link arrives after the link is healed, a dead process's kernel
# closes its end, a host without power closes nothing. A message is delivered as a call at the other end.

RESEND_S = (0.2, 1.0)
USER_TIMEOUT_S = 120.0
Handler = Callable[[Any], None]

FIN = object()
"""The last message that a closed end sends."""


class End:
    """One process's end of a line. ``on_message`` and ``on_closed`` run as that process."""

    def __init__(self, line: Line, process: NetworkUser, own: int) -> None:
        self._line = line
        self._own = own
        self.process = process
        self.open = True
        self.on_message: Handler = _ignore
        self.on_closed: Callable[[], None] = _nothing

    def send(self, message: object, size: int = 100) -> None:
        if self.open:
            self._line.send(self._own, message, size)

    def close(self) -> None:
        """Close this end; the other end is notified after all earlier messages."""
        if self.open:
            self.open = False
            self._line.send(self._own, FIN, 0)

    def deliver(self, message: object) -> None:
        """Handle one message as the end's process; does nothing if the end was closed meanwhile."""
        if not self.open:
            return
        if message is FIN:
            self.open = False
            self._line.finish()
            self.on_closed()
        else:
            self.on_message(message)


class Line:
    """Both ends of a connection, and the messages in flight between them."""

    def __init__(self, fabric: Fabric, client: NetworkUser, server: NetworkUser) -> None:
        self._fabric = fabric
        self.ends = (End(self, client, 0), End(self, server, 1))
        self._queues: tuple[deque[object], deque[object]] = (deque(), deque())
        self._last_arrival = [0.0, 0.0]
        self._stuck = [0, 0]
        self._finished = False
        fabric.connections.append(self)

    # ---- called by the fabric

    @property
    def hosts(self) -> tuple[str, str]:
        return self.ends[0].process.host.name, self.ends[1].process.host.name

    def is_open_to(self, server: object) -> bool:
        return self.ends[1].process is server and self.ends[1].open

    def reset(self) -> None:
        for end in self.ends:
            self._lose(end)

    def on_heal(self, source: str, target: str) -> None:
        for own in (0, 1):
            if (self.hosts[own], self.hosts[1 - own]) == (source, target) and self._stuck[own]:
                stuck, self._stuck[own] = self._stuck[own], 0
                for _ in range(stuck):
                    delay = self._fabric.chance.uniform(*RESEND_S)
                    self._fabric.loop.in_process(delay, None, self._arrive, own)

    def on_host_up(self, name: str) -> None:
        for end in self.ends:
            if end.process.host.name != name:
                self._lose(end)

    def on_process_gone(self, process: NetworkUser) -> None:
        for own, end in enumerate(self.ends):
            if end.process is process and end.open:
                end.open = False
                if process.host.up:
                    self.send(own, FIN, 0)
                else:
                    self._queues[own].clear()
        self.finish()

    def finish(self) -> None:
        """Remove the line from the fabric once both ends are closed."""
        if not self._finished and not (self.ends[0].open or self.ends[1].open):
            self._finished = True
            self._fabric.connections.remove(self)

    # ---- messages

    def send(self, own: int, message: object, size: int) -> None:
        fabric, now = self._fabric, self._fabric.loop.time()
        source, target = self.hosts[own], self.hosts[1 - own]
        self._queues[own].append(message)
        arrival = max(self._last_arrival[own], now + fabric.delay(source, target, size))
        self._last_arrival[own] = arrival
        fabric.loop.in_process(arrival - now, None, self._arrive, own)

    def _arrive(self, own: int) -> None:
        if not self._queues[own]:
            return
        if self._fabric.is_cut(self.hosts[own], self.hosts[1 - own]):
            self._stuck[own] += 1
            if self._stuck[own] == 1:
                self._fabric.loop.in_process(USER_TIMEOUT_S, None, self._give_up, own, self._queues[own][0])
            return
        message, end = self._queues[own].popleft(), self.ends[1 - own]
        if end.process.alive:
            self._fabric.loop.in_process(0.0, end.process, end.deliver, message)

    def _give_up(self, own: int, oldest: object) -> None:
        if self._stuck[own] and self._queues[own] and self._queues[own][0] is oldest:
            self._queues[own].clear()
            self._lose(self.ends[own])

    def _lose(self, end: End) -> None:
        if end.open and end.process.alive:
            self._fabric.loop.in_process(0.0, end.process, end.deliver, FIN)


class ListeningPort:
    """A port at which a process accepts lines. ``accept`` is called with the process's end of each line."""

    def __init__(
        self, fabric: Fabric, process: NetworkUser, port: int, accept: Callable[[End], None]
    ) -> None:
        self.process = process
        self.accepts = True
        self.accept = accept
        self._listeners = fabric.listeners
        self._key = (process.host.name, port)
        self._listeners[self._key] = self

    def close(self) -> None:
        if self._listeners.get(self._key) is self:
            del self._listeners[self._key]


async def dial(fabric: Fabric, process: NetworkUser, host: str, port: int, timeout_s: float) -> End:
    """Connect ``process`` to ``host``:``port`` and return its end of the new line.

    Raises OSError, for example TimeoutError after ``timeout_s``.
    """
    async with asyncio.timeout(timeout_s):
        listening_port = await Attempt(fabric, process, host, port).answer()
    assert isinstance(listening_port, ListeningPort), f"the listener at {host}:{port} uses another protocol"
    if not listening_port.process.alive:
        raise ConnectionResetError(errno.ECONNRESET, f"Connection to {host}:{port} reset")
    line = Line(fabric, process, listening_port.process)
    fabric.loop.in_process(0.0, listening_port.process, listening_port.accept, line.ends[1])
    return line.ends[0]


def _ignore(message: Any) -> None:
    """Ignore a message: the end has no ``on_message`` yet."""


def _nothing() -> None:
    """Do nothing: the end has no ``on_closed`` yet."""
