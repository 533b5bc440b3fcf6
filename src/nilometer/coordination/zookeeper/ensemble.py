"""The interface of an ensemble of ZooKeeper servers: operations on nodes, and the errors they raise.

Two things implement it: ``KazooBridge`` speaks to real servers, and the simulation has a virtual ensemble.
Both keep these rules, which are ZooKeeper's:

- A *write* (``create``, ``set``, ``delete``, ``ensure``, ``commit``) goes through the leader and a quorum.
  Its answer proves that the session was alive after the request. Every later read of the session sees what
  was committed before it by any session: also when it was refused (NodeExists, NoNode, BadVersion).
- A *read* (``get``, ``exists``, ``children``) is answered by the server in use alone, which may lag behind
  the others or be cut off from them. Within a session it never returns an older state than before, also on
  another server. A new session may begin on a server that lags.
- A *watch* fires once, on the event loop, with no content: when what it watches has changed, or when the
  connection is lost and the watch with it. ``on_connected`` says that there is a new connection.
- Requests of one client are carried out in the order in which they were made.
- An ephemeral node vanishes when its session ends: all nodes of a session in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

RECONNECT_S = 0.05
"""About how long a client takes to begin a new session after the old one ended."""


class NodeExists(Exception):
    pass


class NoNode(Exception):
    pass


class BadVersion(Exception):
    pass


class Disconnected(Exception):
    """No server answered in time, or the session ended. A write may have happened, or may yet."""


class SessionEnded(Disconnected):
    """The servers ended the session. Requests in progress may have been carried out before."""


@dataclass(frozen=True, slots=True)
class Node:
    """``data`` is empty in the answer of ``exists``. ``owner`` is the session of an ephemeral node, or 0."""

    data: bytes
    version: int
    created_zxid: int
    owner: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetVersion:
    """Write empty content to a node that has exactly this version; its version rises by one."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class CheckExists:
    path: str


@dataclass(frozen=True, slots=True)
class Delete:
    path: str


Step = Create | SetVersion | CheckExists | Delete


class Ensemble(Protocol):
    """A client with one session at a time. Paths start at its chroot.

    Every call raises Disconnected (SessionEnded when the session of the call is over) besides what it names.
    A read that meets the end of a session is asked again in the next one.
    """

    @property
    def session_id(self) -> int:
        """The current session, or the last one; 0 before the first."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """After this long without a message from the client the servers end the session: the granted timeout,
        which may differ from the requested one."""
        ...

    @property
    def server(self) -> str:
        """The server in use, or the one last used, as ``host:port``; empty before the first."""
        ...

    async def start(self, timeout_s: float) -> None:
        """Connect and begin a session. Raises Disconnected when no server answers within ``timeout_s``."""
        ...

    async def stop(self) -> None:
        """End the session at the servers where they can be reached, and release all resources."""
        ...

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        """Raises NoNode; then no watch is set."""
        ...

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """The watch is set in any case: it fires when the node is created, changed or deleted."""
        ...

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Names in order. The watch fires when a child is created or deleted. Raises NoNode."""
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Raises NodeExists; NoNode without the parent."""
        ...

    async def ensure(self, path: str) -> None:
        """Create ``path``, its parents and the chroot, as far as they do not exist."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> None:
        """Raises BadVersion, NoNode."""
        ...

    async def delete(self, path: str) -> None:
        """Raises NoNode."""
        ...

    async def commit(self, steps: Sequence[Step]) -> None:
        """All steps or none; raises the error of the first failing step."""
        ...


class Connect(Protocol):
    """Makes a client of certain servers that is not started yet."""

    def __call__(
        self, timeout_ms: int, on_connected: Callable[[], None], on_lost: Callable[[], None]
    ) -> Ensemble:
        """``on_connected``: there is a connection, the first or another. ``on_lost``: the session ended."""
        ...
