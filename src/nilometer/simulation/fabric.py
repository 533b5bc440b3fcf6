"""What lies between hosts: which links are cut, how long a packet takes, which ports are open.

TCP hides loss, repetition and reordering inside a connection; so does this. What the network does to packets
shows as on a real network: as delay, as silence while a link is cut (what was sent waits, and arrives after
it heals), as a reset, and as order between *different* connections that is not guaranteed.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Protocol

from nilometer.simulation.loop import Owner, VirtualLoop

RETRANSMIT_S = (0.2, 1.0)
FIRST_EPHEMERAL_PORT = 32_768
LOOPBACK = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::", "::1", ""})


class NetworkHost(Protocol):
    """The machine that an address stands for."""

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
    """Who accepts at a port."""

    accepts: bool

    @property
    def process(self) -> NetworkUser: ...


class Link(Protocol):
    """A connection, as what lies between hosts knows it."""

    @property
    def hosts(self) -> tuple[str, str]: ...

    def is_open_to(self, server: object) -> bool:
        """Whether ``server``, a process, holds its end."""
        ...

    def reset(self) -> None: ...

    def on_heal(self, source: str, target: str) -> None: ...

    def on_host_up(self, name: str) -> None: ...

    def on_process_gone(self, process: NetworkUser) -> None: ...


class Fabric:
    """All links and all listeners of a world."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.hosts: dict[str, NetworkHost] = {}
        self.listeners: dict[tuple[str, int], Listening] = {}
        self.connections: list[Link] = []
        self.latency_ms: tuple[float, float] = (0.05, 0.5)
        self.delay_spike_share = 0.0
        """How likely a packet is lost and sent again."""
        self.bytes_per_s = 1_000_000_000
        self._cut: set[tuple[str, str]] = set()
        self._slow_ms: dict[tuple[str, str], float] = {}
        self._ports: dict[str, int] = {}
        self._numbers = 0

    # ---- what goes wrong

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target`` any more. Acknowledgements go the other way."""
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
        """Break every connection between two hosts, as a firewall that forgot them does."""
        for connection in list(self.connections):
            if sorted(connection.hosts) == sorted((host, other)):
                connection.reset()

    # ---- packets

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut or not self.hosts[target].up or not self.hosts[source].up

    def delay(self, source: str, target: str, size: int = 0) -> float:
        """Seconds that a packet sent now takes."""
        low, high = self.latency_ms
        delay = low + (high - low) * self.chance.random()
        if source == target:
            delay /= 10
        elif self.delay_spike_share and self.chance.random() < self.delay_spike_share:
            delay += self.chance.uniform(*RETRANSMIT_S) * 1000
        return (delay + self._slow_ms.get((source, target), 0.0)) / 1000 + size / self.bytes_per_s

    # ---- processes and hosts

    def forget(self, process: NetworkUser) -> None:
        """The process died: its kernel closes what it held."""
        for key in [key for key, listener in self.listeners.items() if listener.process is process]:
            del self.listeners[key]
        for connection in list(self.connections):
            connection.on_process_gone(process)

    def on_host_up(self, name: str) -> None:
        """A machine that restarted knows nothing of its old connections, and says so when asked."""
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
