"""Faults of a ZooKeeper ensemble: servers that crash, pause, lag, or are cut off.

Half of the faults affect the leader. Invariant: every fault that has started is ended by
:meth:`EnsembleFaults.end`, or by healing the ensemble and the network.
"""

from __future__ import annotations

from typing import assert_never

from nilometer.simulation.fabric import Fabric
from nilometer.simulation.fault_kinds import EnsembleKind, Fault, Kind
from nilometer.simulation.stores import ZooKeeperServers
from nilometer.simulation.world import Host
from nilometer.simulation.zookeeper.server import Server

LAG_S = 4.0
"""The largest lag of a server."""
WHOLE = 0.5
"""Faults of more than this size affect all links, others one link."""


class EnsembleFaults:
    def __init__(self, store: ZooKeeperServers, network: Fabric) -> None:
        self._ensemble = store.ensemble
        self._network = network
        self._hit: dict[int, Server] = {}
        """The number of a current fault → the server that it affects."""

    def begin(self, fault: Fault, kind: EnsembleKind, broker: Host) -> None:
        server = self._hit[fault.number] = self._chosen(fault)
        match kind:
            case Kind.ZOOKEEPER_CRASH:
                server.kill()
            case Kind.ZOOKEEPER_PAUSE:
                server.pause()
            case Kind.ZOOKEEPER_CUT | Kind.ZOOKEEPER_CUT_CLIENT:
                for source, target in self._links(fault, kind, server, broker):
                    self._network.cut(source, target)
            case Kind.ZOOKEEPER_LAG:
                server.lag_s = LAG_S * fault.size**2
            case _:
                assert_never(kind)

    def end(self, fault: Fault, kind: EnsembleKind, broker: Host) -> None:
        server = self._hit.pop(fault.number)
        match kind:
            case Kind.ZOOKEEPER_CRASH:
                server.start()
            case Kind.ZOOKEEPER_PAUSE:
                server.resume()
            case Kind.ZOOKEEPER_CUT | Kind.ZOOKEEPER_CUT_CLIENT:
                for source, target in self._links(fault, kind, server, broker):
                    self._network.heal(source, target)
            case Kind.ZOOKEEPER_LAG:
                server.lag_s = 0.0
            case _:
                assert_never(kind)

    def _chosen(self, fault: Fault) -> Server:
        servers = self._ensemble.servers
        leader = self._ensemble.leader
        if fault.number % 2 and leader is not None:
            return leader
        return servers[int(fault.size * 1_000_003) % len(servers)]

    def _links(self, fault: Fault, kind: EnsembleKind, server: Server, broker: Host) -> list[tuple[str, str]]:
        """Return the (source, target) links to cut: in both directions, for one fault in four in one only."""
        others = [each.host.name for each in self._ensemble.servers if each is not server]
        if kind is Kind.ZOOKEEPER_CUT:
            own, ends = server.host.name, others if fault.size > WHOLE else others[:1]
        else:
            own, ends = broker.name, [server.host.name, *(others if fault.size > WHOLE else ())]
        links = [(own, end) for end in ends]
        return links if fault.number % 4 == 3 else links + [(end, own) for end in ends]
