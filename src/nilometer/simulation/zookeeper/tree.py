"""The data tree: how transactions change nodes and sessions, and which watches they fire.

A node with an ACL permits everything to one user, and nothing to others; the user is that of the session.
(At real servers it is that of the connection, on which a client authenticates again; the clients of one
session have the same user here.)

No I/O. Every server applies the same transactions in zxid order, so each computes the same outcome here; the
outcome is not part of a transaction.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from nilometer.invariants import check


class Code(enum.Enum):
    """Why a request was rejected, named as in ZooKeeper."""

    NO_NODE = "NoNode"
    NODE_EXISTS = "NodeExists"
    BAD_VERSION = "BadVersion"
    NOT_EMPTY = "NotEmpty"
    NO_CHILDREN_FOR_EPHEMERALS = "NoChildrenForEphemerals"
    NO_AUTH = "NoAuth"
    INVALID_ACL = "InvalidACL"
    SESSION_EXPIRED = "SessionExpired"
    SESSION_MOVED = "SessionMoved"


class Refusal(Exception):
    def __init__(self, code: Code, path: str = "") -> None:
        super().__init__(f"{code.value} {path}".strip())
        self.code = code


class NodeState(msgspec.Struct, frozen=True):
    data: bytes
    created_zxid: int
    modified_zxid: int
    version: int = 0
    owner: int = 0
    """The session whose end deletes this ephemeral node; 0 for a persistent node."""
    user: str = ""
    """The user that the ACL permits everything; empty: it permits everything to everyone."""


class CreateNode(msgspec.Struct, frozen=True):
    path: str
    data: bytes
    ephemeral: bool = False
    protected: bool = False
    """Whether the node gets an ACL for the session's user."""


class SetAcl(msgspec.Struct, frozen=True):
    """Give a node an ACL for the session's user."""

    path: str


class SetData(msgspec.Struct, frozen=True):
    path: str
    data: bytes
    version: int = -1


class DeleteNode(msgspec.Struct, frozen=True):
    path: str
    version: int = -1


class CheckVersion(msgspec.Struct, frozen=True):
    path: str
    version: int = -1


class Multi(msgspec.Struct, frozen=True):
    steps: tuple[CreateNode | SetData | DeleteNode | CheckVersion | SetAcl, ...]


class CreateSession(msgspec.Struct, frozen=True):
    timeout_ms: int
    user: str = ""


class CloseSession(msgspec.Struct, frozen=True):
    pass


class Refuse(msgspec.Struct, frozen=True):
    """A request that the leader rejected: it has a place in the order and changes nothing."""

    code: Code


Single = CreateNode | SetData | DeleteNode | CheckVersion | SetAcl
Operation = Single | Multi | CreateSession | CloseSession | Refuse


class Transaction(msgspec.Struct, frozen=True):
    zxid: int
    session: int
    operation: Operation
    origin: tuple[int, int] | None = None
    """(server, request number at that server) that waits for the outcome; None if none does."""


class Event(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children"


@dataclass(slots=True)
class Applied:
    """The outcome of one applied transaction, and the events that fire watches."""

    outcome: NodeState | Refusal | None = None
    events: list[tuple[Event, str]] = field(default_factory=list[tuple[Event, str]])


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class DataTree:
    """Nodes and sessions as of ``zxid``. Invariant: every node's parent exists."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, NodeState] = {"/": NodeState(b"", 0, 0)}
        self.children: dict[str, dict[str, None]] = {"/": {}}
        self.sessions: dict[int, int] = {}
        """Session -> its timeout in ms."""
        self.users: dict[int, str] = {}
        """Session -> its user, if it authenticated."""
        self.ephemerals: dict[int, dict[str, None]] = {}

    def copy(self) -> DataTree:
        made = DataTree()
        made.zxid = self.zxid
        made.nodes = dict(self.nodes)
        made.children = {path: dict(names) for path, names in self.children.items()}
        made.sessions = dict(self.sessions)
        made.users = dict(self.users)
        made.ephemerals = {session: dict(paths) for session, paths in self.ephemerals.items()}
        return made

    def check_permitted(self, path: str, session: int) -> None:
        """Raise Refusal if the node at ``path`` exists and its ACL does not permit ``session``."""
        node = self.nodes.get(path)
        if node is not None and node.user and node.user != self.users.get(session):
            raise Refusal(Code.NO_AUTH, path)

    def apply(self, transaction: Transaction) -> Applied:
        check(transaction.zxid > self.zxid, "transactions are applied in their order", transaction.zxid)
        self.zxid = transaction.zxid
        applied = Applied()
        try:
            applied.outcome = self._do(transaction, applied.events)
        except Refusal as refusal:
            applied.outcome = refusal
        return applied

    def _do(self, transaction: Transaction, events: list[tuple[Event, str]]) -> NodeState | None:
        operation = transaction.operation
        match operation:
            case Refuse(code):
                raise Refusal(code)
            case CreateSession(timeout_ms, user):
                self.sessions[transaction.session] = timeout_ms
                if user:
                    self.users[transaction.session] = user
            case CloseSession():
                for path in list(self.ephemerals.pop(transaction.session, {})):
                    self._remove(path, events)
                self.sessions.pop(transaction.session, None)
                self.users.pop(transaction.session, None)
            case Multi(steps):
                self._do_all(steps, transaction, events)
            case _:
                return self._do_one(operation, transaction, events)
        return None

    def _do_all(
        self, steps: tuple[Single, ...], transaction: Transaction, events: list[tuple[Event, str]]
    ) -> None:
        """Apply all steps or none: if one is rejected, undo the earlier ones. Raises Refusal."""
        undo: list[tuple[str, NodeState | None]] = []
        try:
            for step in steps:
                undo.append((step.path, self.nodes.get(step.path)))
                self._do_one(step, transaction, events)
        except Refusal:
            for path, before in reversed(undo):
                self._restore(path, before)
            events.clear()
            raise

    def _restore(self, path: str, before: NodeState | None) -> None:
        now = self.nodes.get(path)
        if now is not None and before is None:
            self._unlink(path)
        elif now is None and before is not None:
            self._link(path, before)
        elif before is not None:
            self.nodes[path] = before

    def _do_one(
        self, step: Single, transaction: Transaction, events: list[tuple[Event, str]]
    ) -> NodeState | None:
        writes_parent = isinstance(step, CreateNode | DeleteNode)
        self.check_permitted(parent_of(step.path) if writes_parent else step.path, transaction.session)
        match step:
            case CreateNode():
                return self._create(step, transaction.session, events)
            case SetAcl(path):
                node = self._checked(path, -1)
                self.nodes[path] = replace(node, user=self._acl_user(transaction.session, path))
            case SetData(path, data, version):
                node = self._checked(path, version)
                changed = replace(node, data=data, version=node.version + 1, modified_zxid=self.zxid)
                self.nodes[path] = changed
                events.append((Event.CHANGED, path))
                return changed
            case DeleteNode(path, version):
                self._checked(path, version)
                if self.children.get(path):
                    raise Refusal(Code.NOT_EMPTY, path)
                self._remove(path, events)
            case CheckVersion(path, version):
                self._checked(path, version)
        return None

    def _acl_user(self, session: int, path: str) -> str:
        """Return the user of a new ACL. Raises Refusal: an ACL needs an authenticated session."""
        user = self.users.get(session, "")
        if not user:
            raise Refusal(Code.INVALID_ACL, path)
        return user

    def _create(self, step: CreateNode, session: int, events: list[tuple[Event, str]]) -> NodeState:
        path = step.path
        parent = self.nodes.get(parent_of(path))
        if path in self.nodes:
            raise Refusal(Code.NODE_EXISTS, path)
        if parent is None:
            raise Refusal(Code.NO_NODE, path)
        if parent.owner:
            raise Refusal(Code.NO_CHILDREN_FOR_EPHEMERALS, path)
        user = self._acl_user(session, path) if step.protected else ""
        owner = session if step.ephemeral else 0
        node = NodeState(step.data, self.zxid, self.zxid, owner=owner, user=user)
        self._link(path, node)
        events += [(Event.CREATED, path), (Event.CHILDREN, parent_of(path))]
        return node

    def _checked(self, path: str, version: int) -> NodeState:
        node = self.nodes.get(path)
        if node is None:
            raise Refusal(Code.NO_NODE, path)
        if version not in (-1, node.version):
            raise Refusal(Code.BAD_VERSION, path)
        return node

    def _remove(self, path: str, events: list[tuple[Event, str]]) -> None:
        self._unlink(path)
        events += [(Event.DELETED, path), (Event.CHILDREN, parent_of(path))]

    def _link(self, path: str, node: NodeState) -> None:
        self.nodes[path] = node
        self.children[path] = {}
        self.children[parent_of(path)][path.rpartition("/")[2]] = None
        if node.owner:
            self.ephemerals.setdefault(node.owner, {})[path] = None

    def _unlink(self, path: str) -> None:
        node = self.nodes.pop(path)
        del self.children[path]
        del self.children[parent_of(path)][path.rpartition("/")[2]]
        if node.owner:
            self.ephemerals.get(node.owner, {}).pop(path, None)


# The data of one server: the transaction log on its disk, and the tree with the applied transactions.
#
# Every proposed transaction is written to the log; the synced ones survive a crash. Invariant: the zxids of
# the log are increasing, and ``base`` is the tree as of the transactions removed from the log's start.

LOG_MAX = 1_500
LOG_KEPT = 500
"""Applied transactions kept in the log for returning followers; one that lacks more gets a snapshot."""


def _zxid(transaction: Transaction) -> int:
    return transaction.zxid


class Database:
    def __init__(self) -> None:
        self.accepted_epoch = 0
        self.current_epoch = 0
        self.base = DataTree()
        self.log: list[Transaction] = []
        self.tree = DataTree()
        self._unsynced = 0
        """Number of transactions at the log's end that a crash would remove."""

    @property
    def last_zxid(self) -> int:
        return self.log[-1].zxid if self.log else self.base.zxid

    def load(self) -> None:
        """Restore the state after a crash: drop the unsynced transactions and rebuild the tree."""
        if self._unsynced:
            del self.log[-self._unsynced :]
            self._unsynced = 0
        self._rebuild()

    def write(self, transaction: Transaction) -> None:
        check(transaction.zxid > self.last_zxid, "zxids rise", transaction.zxid, self.last_zxid)
        self.log.append(transaction)
        self._unsynced += 1

    def synced_to(self, zxid: int) -> None:
        self._unsynced = len(self.log) - bisect_right(self.log, zxid, key=_zxid)

    def fast_forward(self) -> None:
        """Apply every written transaction, and count all as synced.

        Called between two roles, when a server cannot know which of them are committed.
        """
        self._unsynced = 0
        for transaction in self.between(self.tree.zxid, self.last_zxid):
            self.tree.apply(transaction)

    def apply(self, transaction: Transaction) -> Applied:
        return self.tree.apply(transaction)

    def between(self, after: int, up_to: int) -> list[Transaction]:
        start, end = (bisect_right(self.log, zxid, key=_zxid) for zxid in (after, up_to))
        return self.log[start:end]

    def position_before(self, zxid: int) -> int | None:
        """Return the newest zxid of the log that is at most ``zxid``; None if the log starts after it."""
        place = bisect_right(self.log, zxid, key=_zxid)
        if place:
            return self.log[place - 1].zxid
        oldest = self.log[0].zxid if self.log else self.base.zxid + 1
        return self.base.zxid if zxid >= self.base.zxid and self.base.zxid < oldest else None

    def truncate(self, to_zxid: int) -> None:
        """Remove the transactions after ``to_zxid``, which were never committed."""
        check(to_zxid >= self.base.zxid, "the base is not truncated", to_zxid, self.base.zxid)
        del self.log[bisect_right(self.log, to_zxid, key=_zxid) :]
        if self.tree.zxid > to_zxid:
            self._rebuild()

    def replace(self, snapshot: DataTree) -> None:
        self.base, self.tree, self.log, self._unsynced = snapshot, snapshot.copy(), [], 0

    def extend(self, transactions: Iterable[Transaction]) -> None:
        """Append and apply committed transactions, and count all as synced."""
        for transaction in transactions:
            self.log.append(transaction)
            self.tree.apply(transaction)
        self._unsynced = 0

    def compact(self) -> None:
        """Remove the log's oldest transactions once it has more than ``LOG_MAX``.

        Only called while serving: all applied transactions are then committed.
        """
        if len(self.log) > LOG_MAX:
            self.base = self.tree.copy()
            applied = bisect_right(self.log, self.base.zxid, key=_zxid)
            del self.log[: max(0, applied - LOG_KEPT)]

    def _rebuild(self) -> None:
        self.tree = self.base.copy()
        for transaction in self.between(self.base.zxid, self.last_zxid):
            self.tree.apply(transaction)
