"""The network between hosts: which links are cut, how long a packet takes, which ports are open.

TCP hides loss, duplication and reordering inside a connection; so does this. Faults have the same effects as
on a real network: delay, silence while a link is cut (packets wait, and arrive after it is healed), resets,
and no guaranteed order between *different* connections.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Protocol

from nilometer.simulation.loop import Owner, VirtualLoop

# What an observer of the simulated network is notified of. Observing changes nothing in the simulation.


class DirectionObserver(Protocol):
    """Observes the bytes of one direction of one connection."""

    def on_sent(self, data: bytes) -> None: ...

    def on_arrived(self, size: int, is_open: bool) -> None:
        """The next ``size`` bytes have arrived. ``is_open``: whether the receiver still has the connection
        open; if not, nothing reads them."""
        ...

    def on_dropped(self) -> None:
        """No byte that is in transit will arrive."""
        ...


class NetworkObserver(Protocol):
    def on_connection(
        self, client: NetworkUser, server: NetworkUser
    ) -> tuple[DirectionObserver, DirectionObserver] | None:
        """Return the observers of the directions to the server and back; None: it is not observed."""
        ...


RETRANSMIT_S = (0.2, 1.0)
FIRST_EPHEMERAL_PORT = 32_768
LOOPBACK = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::", "::1", ""})


class NetworkHost(Protocol):
    """A machine on the network; its name is its address."""

    @property
    def name(self) -> str: ...

    @property
    def up(self) -> bool: ...


class NetworkUser(Owner, Protocol):
    @property
    def name(self) -> str: ...

    @property
    def host(self) -> NetworkHost: ...


class Listening(Protocol):
    """A listener at a port; ``accepts``: whether it accepts connections already."""

    accepts: bool

    @property
    def process(self) -> NetworkUser: ...


class Link(Protocol):
    """The interface of a connection that the fabric uses."""

    @property
    def hosts(self) -> tuple[str, str]: ...

    def is_open_to(self, server: object) -> bool:
        """Return whether the process ``server`` has its end of the connection open."""
        ...

    def reset(self) -> None: ...

    def on_heal(self, source: str, target: str) -> None: ...

    def on_host_up(self, name: str) -> None: ...

    def on_process_gone(self, process: NetworkUser) -> None: ...


class Fabric:
    """All links and listeners of a simulation."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.hosts: dict[str, NetworkHost] = {}
        self.listeners: dict[tuple[str, int], Listening] = {}
        self.connections: list[Link] = []
        self.latency_ms: tuple[float, float] = (0.05, 0.5)
        self.delay_spike_share = 0.0
        """The probability that a packet is lost and retransmitted."""
        self.bytes_per_s = 1_000_000_000
        self.observer: NetworkObserver | None = None
        """Observes the connections that are established from now on."""
        self._cut: set[tuple[str, str]] = set()
        self._slow_ms: dict[tuple[str, str], float] = {}
        self._ports: dict[str, int] = {}
        self._numbers = 0

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        """Stop all packets from ``source`` to ``target``, also acknowledgements of the other direction."""
        self.note("network", f"cut {source} -> {target}")
        self._cut.add((source, target))

    def heal(self, source: str, target: str) -> None:
        if (source, target) in self._cut:
            self.note("network", f"heal {source} -> {target}")
            self._cut.discard((source, target))
            for connection in list(self.connections):
                connection.on_heal(source, target)

    def separate(self, some: list[str], others: list[str]) -> None:
        for a in some:
            for b in others:
                self.cut(a, b)
                self.cut(b, a)

    def heal_all(self) -> None:
        for source, target in sorted(self._cut):
            self.heal(source, target)
        self._slow_ms.clear()

    def slow(self, source: str, target: str, extra_ms: float) -> None:
        self.note("network", f"slow {source} -> {target} {extra_ms:g} ms")
        self._slow_ms[source, target] = extra_ms

    def reset(self, host: str, other: str) -> None:
        """Reset every connection between two hosts, as a firewall that lost its state does."""
        for connection in list(self.connections):
            if sorted(connection.hosts) == sorted((host, other)):
                connection.reset()

    # ---- packets

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut or not self.hosts[target].up or not self.hosts[source].up

    def delay(self, source: str, target: str, size: int = 0) -> float:
        """Return how many seconds a packet of ``size`` bytes that is sent now takes."""
        low, high = self.latency_ms
        delay = low + (high - low) * self.chance.random()
        if source == target:
            delay /= 10
        elif self.delay_spike_share and self.chance.random() < self.delay_spike_share:
            delay += self.chance.uniform(*RETRANSMIT_S) * 1000
        return (delay + self._slow_ms.get((source, target), 0.0)) / 1000 + size / self.bytes_per_s

    # ---- processes and hosts

    def forget(self, process: NetworkUser) -> None:
        """Close the listeners and connections of a process that died, as its kernel does."""
        for key in [key for key, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[key]
        for connection in list(self.connections):
            connection.on_process_gone(process)

    def on_host_up(self, name: str) -> None:
        """Reset the old connections of a machine that restarted, when their peers send to it."""
        for connection in list(self.connections):
            if name in connection.hosts:
                connection.on_host_up(name)

    # ---- connecting

    def address(self, host: str, own: str) -> str:
        name = own if host in LOOPBACK else host
        if name not in self.hosts:
            raise OSError(errno.EHOSTUNREACH, f"no host is named {host}")
        return name

    def next_port(self, host: str) -> int:
        port = self._ports.get(host, FIRST_EPHEMERAL_PORT)
        while (host, port) in self.listeners:
            port += 1
        self._ports[host] = port + 1
        return port

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers
