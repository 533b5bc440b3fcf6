"""The interface of an ensemble of ZooKeeper servers: operations on nodes, and the errors they raise.

There are two implementations: ``KazooBridge`` connects to real servers, and the simulation has a virtual
ensemble. Both keep these rules, which are ZooKeeper's:

- A *write* (``create``, ``set``, ``delete``, ``ensure``, ``commit``) goes through the leader and a quorum.
  Its response proves that the session was alive after the request. Every later read of the session sees all
  writes that any session committed before it, also if it was rejected (NodeExists, NoNode, BadVersion).
- A *read* (``get``, ``exists``, ``children``) is served by the connected server alone, which may lag behind
  the others or be cut off from them. Within a session it never returns an older state than before, also on
  another server. A new session may start on a server that lags.
- A *watch* fires once, on the event loop, without content: when the watched node has changed, or when the
  connection is lost and the watch with it. ``on_connected`` is called for a new connection.
- Requests of one client are executed in the order in which they were made.
- An ephemeral node is deleted when its session ends: all nodes of a session in one step.
- A client that *protects* its nodes creates each with an ACL that permits everything to the user whose name
  and password it sends on every connection, and nothing to others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

RECONNECT_S = 0.05
"""How long, roughly, a client takes to start a new session after the old one ended (seconds)."""


class NodeExists(Exception):
    pass


class NoNode(Exception):
    pass


class BadVersion(Exception):
    pass


class Disconnected(Exception):
    """No server responded in time, or the session ended. A write may have been executed, or may still be."""


class SessionEnded(Disconnected):
    """The servers ended the session. Requests in progress may have been executed before."""


class AccessDenied(Disconnected):
    """The ACL of a node, or of its parent, does not permit the request to this client: nothing was executed.

    Handled as a server that does not respond, because the ACL of a running cluster can be repaired.
    """


class Node(msgspec.Struct, frozen=True):
    """A node.

    ``data`` is empty in the result of ``exists``; ``owner`` is an ephemeral node's session, or 0.
    """

    data: bytes
    version: int
    created_zxid: int
    owner: int


class Create(msgspec.Struct, frozen=True):
    path: str
    data: bytes
    ephemeral: bool = False


class SetVersion(msgspec.Struct, frozen=True):
    """Write a node that has exactly this version, which increments its version."""

    path: str
    version: int
    data: bytes = b""


class CheckExists(msgspec.Struct, frozen=True):
    """A node exists, and has this version; -1: any."""

    path: str
    version: int = -1


class Delete(msgspec.Struct, frozen=True):
    path: str


Step = Create | SetVersion | CheckExists | Delete


class Ensemble(Protocol):
    """A client with one session at a time. Paths are relative to its chroot.

    Every call may also raise Disconnected (SessionEnded if the session of the call has ended). A read during
    which the session ends is repeated in the next session.
    """

    @property
    def session_id(self) -> int:
        """The current session, or the last one; 0 before the first."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """The timeout that the servers granted, which may differ from the requested one: they end the session
        if they receive nothing from the client for so long."""
        ...

    @property
    def server(self) -> str:
        """The connected server, or the last one, as ``host:port``; empty before the first connection."""
        ...

    @property
    def protects(self) -> bool:
        """Whether nodes are created with an ACL."""
        ...

    async def start(self, timeout_s: float) -> None:
        """Connect and start a session. Raises Disconnected if no server responds within ``timeout_s``."""
        ...

    async def stop(self) -> None:
        """End the session at the servers if they can be reached, and release all resources."""
        ...

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        """Return a node. Raises NoNode; then no watch is set."""
        ...

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> Node | None:
        """Return a node without data, or None.

        The watch is set in any case: it fires when the node is created, changed or deleted.
        """
        ...

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Return the children's names, sorted. The watch fires when one is created or deleted.

        Raises NoNode.
        """
        ...

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        """Create a node. Raises NodeExists; NoNode if the parent does not exist."""
        ...

    async def ensure(self, path: str) -> None:
        """Create ``path``, its parents and the chroot if they do not exist. Parents of the chroot, which may
        be shared with others, get no ACL."""
        ...

    async def is_protected(self, path: str) -> bool:
        """Return whether the node's ACL permits everything to this client's user, and nothing to others.

        The first call gives its node this ACL. Raises NoNode.
        """
        ...

    async def protect(self, path: str) -> None:
        """Replace the node's ACL by one that permits everything to this client's user only. Raises NoNode."""
        ...

    async def set(self, path: str, data: bytes, version: int) -> None:
        """Write a node's data if it has this version. Raises BadVersion, NoNode."""
        ...

    async def delete(self, path: str) -> None:
        """Delete a node. Raises NoNode."""
        ...

    async def commit(self, steps: Sequence[Step]) -> None:
        """Execute all steps or none in one transaction; raise the error of the first failing step."""
        ...


class Connect(Protocol):
    """Creates a client of certain servers, which is not started yet."""

    def __call__(
        self, timeout_ms: int, on_connected: Callable[[], None], on_lost: Callable[[], None]
    ) -> Ensemble:
        """``on_connected`` is called for every new connection, ``on_lost`` when the session has ended."""
        ...
