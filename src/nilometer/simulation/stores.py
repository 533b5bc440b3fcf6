"""The coordination store of a simulated cluster, for faults and checkers. There are two types:

- *a folder*, on the brokers' machine or on a disk that all machines reach;
- *ZooKeeper*, an ensemble of three virtual servers on their own machines.

In both the brokers use the real store code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from nilometer.coordination.local.store import LocalStore
from nilometer.coordination.store import CoordinationStore
from nilometer.coordination.zookeeper.ensemble import Connect
from nilometer.coordination.zookeeper.store import ZooKeeperStore
from nilometer.recorder.seam import SeamDisk
from nilometer.runtime import Disk, Runtime
from nilometer.simulation.disk import FileNode, FolderNode, HostDisk
from nilometer.simulation.world import Process, World
from nilometer.simulation.zookeeper.client import VirtualBridge
from nilometer.simulation.zookeeper.following import Following, Looking
from nilometer.simulation.zookeeper.leading import Leading
from nilometer.simulation.zookeeper.server import Members, Roles, Server, Settings
from nilometer.simulation.zookeeper.tree import DataTree, NodeState

# A simulated ensemble: its servers, each on its own host, and the faults that a test may cause in them.


class VirtualEnsemble:
    def __init__(
        self, world: World, *, size: int = 3, settings: Settings | None = None, name: str = "zookeeper"
    ) -> None:
        self.world = world
        self._members = Members(settings or Settings(), Roles(Looking, Following, Leading))
        for number in range(1, size + 1):
            host = world.host(f"{name}-{number}")
            self._members.servers[number] = Server(world, self._members, number, host)

    @property
    def servers(self) -> list[Server]:
        return list(self._members.servers.values())

    @property
    def hosts(self) -> list[str]:
        return [server.host.name for server in self.servers]

    @property
    def leader(self) -> Server | None:
        """The serving leader; of several, the one with the newest epoch. None if no server leads."""
        leading = [server for server, _ in self._leading()]
        return max(leading, key=lambda server: server.database.current_epoch, default=None)

    @property
    def tree(self) -> DataTree:
        """The tree of the server that has applied the newest transaction."""
        return max((server.database.tree for server in self.servers), key=lambda tree: tree.zxid)

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def heal(self) -> None:
        """Start or resume every server, and end its lag. Cut links are healed by the fabric, not here."""
        for server in self.servers:
            server.lag_s = 0.0
            server.resume()
            server.start()

    def expire(self, session: int) -> bool:
        """Expire ``session``, as without pings; return False if no serving leader has it open."""
        return any(role.end_session(session) for _, role in self._leading())

    def connect(
        self, process: Process, chroot: str = "", *, user: str = "", protects: bool = False
    ) -> Connect:
        """Return the factory of ZooKeeper clients for a broker that runs as ``process``.

        ``user``: the user that the clients authenticate as; ``protects``: whether their nodes get an ACL.
        """

        def make(
            timeout_ms: int, on_connected: Callable[[], None], on_lost: Callable[[], None]
        ) -> VirtualBridge:
            return VirtualBridge(
                process, self.hosts, chroot, timeout_ms, on_connected, on_lost, user, protects
            )

        return make

    def _leading(self) -> Iterator[tuple[Server, Leading]]:
        for server in self.servers:
            role = server.peer.role if server.is_running and server.peer is not None else None
            if isinstance(role, Leading) and role.is_serving:
                yield server, role


COORDINATION = "/coordination"


class EnsemblePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the ZooKeeper servers, and the brokers' chroot and session timeout."""

    settings: Settings
    chroot: str
    session_timeout_ms: int


class ClusterStore(Protocol):
    def start(self) -> None: ...

    def heal(self) -> None:
        """End all faults of the store, except those of disks and links."""
        ...

    def of(self, process: Process, runtime: Runtime) -> CoordinationStore:
        """Return a store, not yet open, for one start of a broker."""
        ...

    def expire_session(self, broker_id: int) -> None:
        """End the broker's session, as if the broker were dead."""
        ...

    def entries(self) -> list[tuple[int, bytes]] | None:
        """Return the metadata log from its first entry on; None if a snapshot replaced a part of it."""
        ...

    def entry_count(self) -> int: ...

    def holds_ended_session(self, broker_id: int, incarnation: int) -> bool:
        """Return whether the store itself, not :meth:`expire_session`, has ended this session."""
        ...


class FolderStore:
    """A folder that every broker can access."""

    def __init__(self, disk: HostDisk) -> None:
        self._disk = disk

    def start(self) -> None:
        """Do nothing: the process that opens the store first creates it."""

    def heal(self) -> None:
        """Do nothing: its disk is healed with all disks."""

    def of(self, process: Process, runtime: Runtime) -> LocalStore:
        if process.host.disk is self._disk:
            return LocalStore(runtime, COORDINATION)
        disk: Disk = process.view_of(self._disk)
        if isinstance(runtime.disk, SeamDisk):
            disk = runtime.disk.beside(disk)
        return LocalStore(dataclasses.replace(runtime, disk=disk), COORDINATION)

    def expire_session(self, broker_id: int) -> None:
        folder = self._disk.find(f"{COORDINATION}/sessions")
        assert isinstance(folder, FolderNode), "the store has sessions"
        sessions = [name.split(".") for name in folder.entries if name.endswith(".session")]
        last = max((int(number) for broker, number, _ in sessions if broker == str(broker_id)), default=None)
        marker = f"{broker_id}.{last}.expired"
        if last is not None and marker not in folder.entries:
            node = FileNode()
            node.links = 1
            folder.change({marker: node})
            self._disk.signal(f"{COORDINATION}/sessions/{marker}")

    def entries(self) -> list[tuple[int, bytes]] | None:
        folders = self._disk.find(f"{COORDINATION}/entries")
        assert isinstance(folders, FolderNode), "a store has entries"
        if len(folders.entries) != 1:
            return None
        (folder,) = folders.entries.values()
        assert isinstance(folder, FolderNode)
        found: list[tuple[int, bytes]] = []
        for name in sorted((name for name in folder.entries if name.isdecimal()), key=int):
            node = folder.entries[name]
            assert isinstance(node, FileNode)
            head, _, body = bytes(node.data).partition(b"\n")
            if head.split(b" ")[0] == b"entry":
                found.append((int(name), body))
        return found

    def entry_count(self) -> int:
        folder = self._disk.find(f"{COORDINATION}/entries")
        if not isinstance(folder, FolderNode):
            return 0
        return sum(
            len(each.entries) if isinstance(each, FolderNode) else 1 for each in folder.entries.values()
        )

    def holds_ended_session(self, broker_id: int, incarnation: int) -> bool:
        return False  # not checked here: the tests of the store check its sessions


class ZooKeeperServers:
    """An ensemble, and the brokers' nodes in it."""

    def __init__(self, world: World, plan: EnsemblePlan) -> None:
        self.plan = plan
        self.ensemble = VirtualEnsemble(world, settings=plan.settings)
        self._ended_by_hand: set[tuple[int, int]] = set()

    def start(self) -> None:
        self.ensemble.start()

    def heal(self) -> None:
        self.ensemble.heal()

    def of(self, process: Process, runtime: Runtime) -> ZooKeeperStore:
        return ZooKeeperStore(
            runtime,
            ",".join(self.ensemble.hosts) + self.plan.chroot,
            self.ensemble.connect(process, self.plan.chroot),
            session_timeout_ms=self.plan.session_timeout_ms,
        )

    def expire_session(self, broker_id: int) -> None:
        node = self._broker_node(broker_id)
        if node is not None and self.ensemble.expire(node.owner):
            self._ended_by_hand.add((broker_id, node.created_zxid))

    def entries(self) -> list[tuple[int, bytes]] | None:
        tree, root = self.ensemble.tree, f"{self.plan.chroot}/entries"
        numbers = sorted(tree.children.get(root, ()))
        if numbers and int(numbers[0]) != 0:
            return None
        return [(int(number), tree.nodes[f"{root}/{number}"].data) for number in numbers]

    def entry_count(self) -> int:
        return len(self.ensemble.tree.children.get(f"{self.plan.chroot}/entries", ()))

    def holds_ended_session(self, broker_id: int, incarnation: int) -> bool:
        if (broker_id, incarnation) in self._ended_by_hand:
            return False
        node = self._broker_node(broker_id)
        return node is None or node.created_zxid != incarnation

    def _broker_node(self, broker_id: int) -> NodeState | None:
        return self.ensemble.tree.nodes.get(f"{self.plan.chroot}/brokers/ids/{broker_id}")
