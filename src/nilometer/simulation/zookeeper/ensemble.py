"""A simulated ensemble: its servers, each on its own host, and the faults that a test may cause in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nilometer.coordination.zookeeper.ensemble import Connect
from nilometer.simulation.world import Process, World
from nilometer.simulation.zookeeper.client import VirtualBridge
from nilometer.simulation.zookeeper.following import Following, Looking
from nilometer.simulation.zookeeper.leading import Leading
from nilometer.simulation.zookeeper.server import Members, Roles, Server, Settings
from nilometer.simulation.zookeeper.tree import DataTree


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
