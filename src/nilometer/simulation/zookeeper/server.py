"""One server of the ensemble: a process that looks for a leader, follows one, or leads; and what it does for
its clients meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process, World
from nilometer.simulation.zookeeper.messages import (
    Answer,
    Ask,
    ClientPing,
    End,
    Fired,
    GetAcl,
    GetChildren,
    GetData,
    GetExists,
    Hello,
    ListeningPort,
    Notification,
    Origin,
    Pong,
    Read,
    State,
    Vote,
    Welcome,
)
from nilometer.simulation.zookeeper.tree import (
    CloseSession,
    Code,
    CreateSession,
    Database,
    Event,
    NodeState,
    Operation,
    Refusal,
    Transaction,
)

# One server of the ensemble: a process that looks for a leader, follows one, or leads.
#
# Invariants: a server has one role at a time; a transaction that it acknowledged to its leader is on its
# disk; a change of role closes every connection of its clients.

CLIENT_PORT = 2181
QUORUM_PORT = 2888


class Settings(msgspec.Struct, frozen=True):
    """The ensemble's settings, named as in ZooKeeper's configuration."""

    tick_ms: int = 2000
    init_limit: int = 10
    sync_limit: int = 5
    min_session_timeout_ms: int = 0
    """0 means two ticks."""
    max_session_timeout_ms: int = 0
    """0 means twenty ticks."""
    fsync_ms: tuple[float, float] = (0.3, 3.0)

    @property
    def tick_s(self) -> float:
        return self.tick_ms / 1000

    def negotiated_ms(self, asked_ms: int) -> int:
        least = self.min_session_timeout_ms or 2 * self.tick_ms
        most = self.max_session_timeout_ms or 20 * self.tick_ms
        return min(max(asked_ms, least), most)


class Role(Protocol):
    def begin(self) -> None: ...

    def on_notification(self, notification: Notification) -> None: ...

    def on_client(self, end: End) -> None: ...

    def on_learner(self, end: End) -> None: ...

    def end(self) -> None: ...


class Roles(NamedTuple):
    """What makes each role of a server."""

    looking: Callable[[Peer], Role]
    following: Callable[[Peer, Vote], Role]
    leading: Callable[[Peer, Vote], Role]


@dataclass(slots=True)
class Members:
    """The servers of the ensemble by number, their settings, and the roles that they take."""

    settings: Settings
    roles: Roles
    servers: dict[int, Server] = field(default_factory=dict[int, "Server"])

    @property
    def quorum(self) -> int:
        return len(self.servers) // 2 + 1


class Server:
    """A server across restarts: its host, its disk, and its current process, if it runs."""

    def __init__(self, world: World, members: Members, number: int, host: Host) -> None:
        self.world = world
        self.members = members
        self.number = number
        self.host = host
        self.name = host.name
        self.database = Database()
        self.process: Process | None = None
        self.peer: Peer | None = None
        self.requests = itertools.count(1)
        """Numbers for waiting requests.

        They are unique across restarts, so an outcome reaches no other one.
        """
        self.lag_s = 0.0
        """Seconds by which it delays the application of committed transactions."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        if not self.is_running:
            self.process = self.host.start(self.name, self._main)

    def kill(self) -> None:
        self.peer = None
        if self.process is not None and self.process.alive:
            self.process.crash()

    def pause(self) -> None:
        """Stop the process without ending it, as SIGSTOP does."""
        if self.process is not None:
            self.process.pause()

    def resume(self) -> None:
        """Continue a paused process.

        In half of the cases its overdue timers run before the messages that came meanwhile: threads race.
        """
        if self.process is not None and self.process.paused:
            if self.world.chance.random() < 0.5:
                self.process.held.sort(key=lambda callback: callback.time == 0.0)
            self.process.resume()

    def on_notification(self, notification: Notification) -> None:
        if self.peer is not None:
            self.peer.on_notification(notification)

    async def _main(self, runtime: Runtime) -> None:
        assert self.process is not None
        self.database.load()
        self.peer = Peer(self, self.process)
        self.peer.elect("it starts")
        await asyncio.get_running_loop().create_future()


class Peer:
    """One process of a server: the state that its successive roles share."""

    def __init__(self, server: Server, process: Process) -> None:
        self.server = server
        self.number = server.number
        self.process = process
        self.members = server.members
        self.settings = server.members.settings
        self.fabric = server.world.network
        self.loop = server.world.loop
        self.chance = server.world.chance
        self.database = server.database
        self.journal = Journal(self)
        self.round = 0
        self.role: Role | None = None
        ListeningPort(self.fabric, process, CLIENT_PORT, self._on_client)

    def note(self, what: str) -> None:
        self.server.world.trace.note(self.server.name, what)

    def later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(delay_s, callback)

    # ---- roles

    def elect(self, reason: str) -> None:
        """Leave the current role and start an election. ``reason`` is for the trace."""
        self.note(f"looks for a leader: {reason}")
        self._leave()
        self._enter(self.members.roles.looking(self))

    def settle(self, vote: Vote) -> None:
        """End the election, which ``vote`` won: lead if it names this server, else follow."""
        self._leave()
        roles = self.members.roles
        role = roles.leading if vote.server == self.number else roles.following
        self._enter(role(self, vote))

    def _leave(self) -> None:
        if self.role is not None:
            self.role.end()
        self.journal.flush()
        self.database.fast_forward()

    def _enter(self, role: Role) -> None:
        self.role = role
        role.begin()

    # ---- messages

    def notify(self, server: int, notification: Notification) -> None:
        """Send one election message to ``server``; it is lost if the link is cut."""
        target = self.members.servers[server]
        source = self.server.host.name
        if not self.fabric.is_cut(source, target.host.name) and target.process is not None:
            delay = self.fabric.delay(source, target.host.name)
            self.loop.in_process(delay, target.process, target.on_notification, notification)

    def on_notification(self, notification: Notification) -> None:
        if self.role is not None:
            self.role.on_notification(notification)

    def answer_looking(self, notification: Notification, vote: Vote, state: State) -> None:
        """Send ``vote``, which names the current leader, to the sender if it looks for a leader."""
        if notification.state is State.LOOKING:
            self.notify(notification.sender, Notification(self.number, self.round, vote, state))

    def open_to_learners(self) -> ListeningPort:
        """Listen for followers, as only a leader does; a follower that connects too early has to retry."""
        return ListeningPort(self.fabric, self.process, QUORUM_PORT, self._on_learner)

    def _on_client(self, end: End) -> None:
        assert self.role is not None
        self.role.on_client(end)

    def _on_learner(self, end: End) -> None:
        assert self.role is not None
        self.role.on_learner(end)


class Journal:
    """Writes proposals to the disk, many with one sync, and calls back when they are synced."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._waiting: list[tuple[Transaction, Callable[[int], None]]] = []
        self._busy = False
        self._flushes = 0

    def write(self, transaction: Transaction, when_synced: Callable[[int], None]) -> None:
        self._peer.database.write(transaction)
        self._waiting.append((transaction, when_synced))
        if not self._busy:
            self._sync()

    def _sync(self) -> None:
        low, high = self._peer.settings.fsync_ms
        batch, self._waiting = self._waiting, []
        self._busy = True
        flushes = self._flushes
        self._peer.later(self._peer.chance.uniform(low, high) / 1000, lambda: self._on_synced(batch, flushes))

    def _on_synced(self, batch: list[tuple[Transaction, Callable[[int], None]]], flushes: int) -> None:
        if flushes != self._flushes:
            return
        self._busy = False
        self._peer.database.synced_to(batch[-1][0].zxid)
        for transaction, when_synced in batch:
            when_synced(transaction.zxid)
        if self._waiting:
            self._sync()

    def flush(self) -> None:
        """Drop all callbacks, also of the sync under way; the caller counts all transactions as synced."""
        self._waiting.clear()
        self._busy = False
        self._flushes += 1


# What a server does for its clients while it leads or follows.
#
# It answers reads from its own tree, sends writes to the leader, keeps watches, and sends each client's
# responses in the order of its requests. A transaction is applied when the leader commits it, or later: a
# server may lag. Invariant: transactions are applied in zxid order, and a watch fires before any response
# that shows the change.

REQUEST_SIZE_MAX = 1_048_575
"""``jute.maxbuffer``, in bytes: a larger request closes the connection, without a response."""
SILENT_FACTOR = 2.0
"""A connection without a message for this many session timeouts is closed when another is accepted."""
Outcome = NodeState | list[str] | Refusal | None


class Upstream(Protocol):
    """The role (leader or follower) of the serving server, through which requests reach the leader."""

    def submit(self, session: int, operation: Operation, origin: Origin) -> None: ...

    def revalidate(self, session: int, request: int) -> None: ...

    def touch(self, session: int) -> None: ...

    def check(self, session: int) -> None:
        """Check that ``session`` is open here, as far as this server knows.

        Raises Refusal: SESSION_EXPIRED, SESSION_MOVED.
        """
        ...


def password_of(session: int) -> int:
    """Return the password of ``session``, which only its owner and the servers know."""
    return session ^ 0x5DEECE66D


class Slot:
    """A request in the queue of its connection, and its outcome once it is done."""

    __slots__ = ("done", "outcome", "what", "xid")

    def __init__(self, xid: int, what: Read | ClientPing | Operation) -> None:
        self.xid = xid
        self.what = what
        self.done = False
        self.outcome: Outcome = None


class ClientConnection:
    """One client's connection to this server."""

    def __init__(self, serving: Serving, end: End) -> None:
        self._serving = serving
        self._end = end
        self.session = 0
        self.established = False
        self.timeout_ms = 0
        self.heard_s = 0.0
        self._slots: deque[Slot] = deque()
        end.on_message, end.on_closed = self._on_message, self._on_closed

    def send(self, message: object) -> None:
        self._end.send(message)

    def close(self) -> None:
        self._end.close()
        self._on_closed()

    def welcome(self, timeout_ms: int) -> None:
        """Answer the handshake with the session's timeout; 0 says that it has ended, and closes."""
        self._end.send(Welcome(self.session, timeout_ms, password_of(self.session)))
        self.established, self.timeout_ms = timeout_ms > 0, timeout_ms
        if not self.established:
            self.close()

    def settle(self, slot: Slot, outcome: Outcome) -> None:
        slot.done, slot.outcome = True, outcome
        self._answer()

    def _on_closed(self) -> None:
        self._slots.clear()
        self._serving.forget(self)

    def _on_message(self, message: Any) -> None:
        self.heard_s = self._serving.now
        match message:
            case Hello():
                self._serving.greet(self, message)
            case Ask(xid, what, size):
                if size > REQUEST_SIZE_MAX or not self.established:
                    self.close()
                    return
                self._serving.upstream.touch(self.session)
                slot = Slot(xid, what)
                self._slots.append(slot)
                if not isinstance(what, Read | ClientPing):
                    self._serving.submit(self, slot, what)
                self._answer()
            case _:
                raise AssertionError(f"a client does not say {message}")

    def _answer(self) -> None:
        """Send the responses that are due, in order: a read waits for the client's earlier writes.

        Closes the connection if the session has moved to another server (ZOOKEEPER-710). A client that still
        uses this connection moves its session back by connecting again.
        """
        slots = self._slots
        while slots and (slots[0].done or isinstance(slots[0].what, Read | ClientPing)):
            slot = slots.popleft()
            outcome = slot.outcome if slot.done else self._serving.read(self, slot.what)
            if isinstance(outcome, Refusal) and outcome.code is Code.SESSION_MOVED:
                self.close()
                return
            if isinstance(slot.what, ClientPing):
                self._end.send(Pong())
                continue
            self._end.send(Answer(slot.xid, self._serving.zxid, outcome))
            if isinstance(slot.what, CloseSession):
                self.close()
                return


class Serving:
    def __init__(self, peer: Peer, upstream: Upstream) -> None:
        self._peer = peer
        self._tree = peer.database
        self.upstream = upstream
        self._connections: dict[ClientConnection, None] = {}
        self._waiting: dict[int, tuple[ClientConnection, Slot | None]] = {}
        """By request number, the connection and slot that wait for it; no slot: for the handshake."""
        self._watches: dict[tuple[str, bool], dict[ClientConnection, None]] = {}
        """By path and whether its children are watched, the watching connections."""
        self._late: deque[tuple[float, Transaction]] = deque()
        self._ended = False

    @property
    def now(self) -> float:
        return self._peer.loop.time()

    @property
    def zxid(self) -> int:
        return self._tree.tree.zxid

    @property
    def sessions(self) -> list[int]:
        return [connection.session for connection in self._connections if connection.established]

    def end(self) -> None:
        self._ended = True
        for connection in list(self._connections):
            connection.close()

    # ---- connections

    def accept(self, end: End) -> None:
        for old in list(self._connections):
            if old.timeout_ms and self.now - old.heard_s > SILENT_FACTOR * old.timeout_ms / 1000:
                old.close()
        connection = ClientConnection(self, end)
        connection.heard_s = self.now
        self._connections[connection] = None

    def forget(self, connection: ClientConnection) -> None:
        if self._connections.pop(connection, 0) is None:
            for watchers in self._watches.values():
                watchers.pop(connection, None)

    def greet(self, connection: ClientConnection, hello: Hello) -> None:
        peer = self._peer
        if hello.last_zxid > self.zxid:
            connection.close()  # the client has seen newer transactions than this server
            return
        timeout_ms = peer.settings.negotiated_ms(hello.timeout_ms)
        request = next(peer.server.requests)
        self._waiting[request] = (connection, None)
        if hello.session:
            connection.session = hello.session
            if hello.password != password_of(hello.session):
                self.on_revalidated(request, 0)
            else:
                self.upstream.revalidate(hello.session, request)
        else:
            connection.session = (peer.number << 56) + (int(self.now * 1000) << 16) + request % (1 << 16)
            created = CreateSession(timeout_ms, hello.user)
            self.upstream.submit(connection.session, created, (peer.number, request))

    def on_revalidated(self, request: int, timeout_ms: int) -> None:
        """Answer the handshake that waits as ``request``.

        ``timeout_ms`` was negotiated when the session began; 0: the session has ended.
        """
        connection, _ = self._waiting.pop(request)
        if connection in self._connections:
            connection.welcome(timeout_ms)

    # ---- requests

    def submit(self, connection: ClientConnection, slot: Slot, operation: Operation) -> None:
        request = next(self._peer.server.requests)
        self._waiting[request] = (connection, slot)
        self.upstream.submit(connection.session, operation, (self._peer.number, request))

    def read(self, connection: ClientConnection, what: object) -> Outcome:
        tree = self._tree.tree
        try:
            self.upstream.check(connection.session)
            if isinstance(what, GetAcl | GetData | GetChildren):
                tree.check_permitted(what.path, connection.session)
        except Refusal as refusal:
            return refusal
        match what:
            case ClientPing():
                return None
            case GetExists(path, watch):
                if watch:
                    self._watch(connection, path, children=False)
                return tree.nodes.get(path)
            case GetAcl(path):
                return tree.nodes.get(path, Refusal(Code.NO_NODE, path))
            case GetData(path, watch):
                if path not in tree.nodes:
                    return Refusal(Code.NO_NODE, path)
                if watch:
                    self._watch(connection, path, children=False)
                return tree.nodes[path]
            case GetChildren(path, watch):
                if path not in tree.nodes:
                    return Refusal(Code.NO_NODE, path)
                if watch:
                    self._watch(connection, path, children=True)
                return list(tree.children[path])
            case _:
                raise AssertionError(f"{what} is no read")

    # ---- transactions

    def commit(self, transaction: Transaction) -> None:
        lag_s = self._peer.server.lag_s
        if not lag_s and not self._late:
            self._apply(transaction)
            return
        due_s = max(self._peer.loop.time() + lag_s, self._late[-1][0] if self._late else 0.0)
        self._late.append((due_s, transaction))
        if len(self._late) == 1:
            self._peer.later(due_s - self._peer.loop.time(), self._catch_up)

    def _catch_up(self) -> None:
        if self._ended:
            return
        while self._late and self._late[0][0] <= self._peer.loop.time() + 1e-6:
            self._apply(self._late.popleft()[1])
        if self._late:
            self._peer.later(self._late[0][0] - self._peer.loop.time(), self._catch_up)

    def _apply(self, transaction: Transaction) -> None:
        applied = self._tree.apply(transaction)
        self._fire(applied.events)
        if transaction.origin is not None and transaction.origin[0] == self._peer.number:
            self._settle(transaction, applied.outcome)
        if isinstance(transaction.operation, CloseSession):
            for connection in list(self._connections):
                if connection.session == transaction.session:
                    connection.close()
        self._tree.compact()

    def _settle(self, transaction: Transaction, outcome: NodeState | Refusal | None) -> None:
        assert transaction.origin is not None
        connection, slot = self._waiting.pop(transaction.origin[1], (None, None))
        if connection is None or connection not in self._connections:
            return  # the connection is closed: its client never learns the outcome
        if slot is not None:
            connection.settle(slot, outcome)
        else:
            assert isinstance(transaction.operation, CreateSession)
            connection.welcome(transaction.operation.timeout_ms)

    # ---- watches

    def _watch(self, connection: ClientConnection, path: str, *, children: bool) -> None:
        self._watches.setdefault((path, children), {})[connection] = None

    def _fire(self, events: list[tuple[Event, str]]) -> None:
        for event, path in events:
            watchers = {} if event is Event.CHILDREN else self._watches.pop((path, False), {})
            if event in (Event.CHILDREN, Event.DELETED):
                watchers |= self._watches.pop((path, True), {})
            for connection in watchers:
                connection.send(Fired(event, path))
