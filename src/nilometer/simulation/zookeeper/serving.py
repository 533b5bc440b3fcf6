"""What a server does for its clients while it leads or follows.

It answers reads from its own tree, sends writes to the leader, keeps watches, and sends each client's
responses in the order of its requests. A transaction is applied when the leader commits it, or later: a
server may lag. Invariant: transactions are applied in zxid order, and a watch fires before any response that
shows the change.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

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
    Origin,
    Pong,
    Read,
    Welcome,
)
from nilometer.simulation.zookeeper.server import Peer
from nilometer.simulation.zookeeper.tree import (
    CloseSession,
    Code,
    CreateSession,
    Event,
    NodeState,
    Operation,
    Refusal,
    Transaction,
)

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
