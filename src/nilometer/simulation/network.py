"""A network in memory: hosts, what lies between them, and connections that behave like TCP.

TCP hides loss, repetition and reordering inside a connection; so do these. What the network does to packets
shows as it does in life: as delay, as silence while a link is cut (what was sent waits, and arrives after it
heals), as a reset, as back-pressure when the other side does not read, and as order between *different*
connections that nobody can rely on.

Invariants: bytes of one direction of one connection arrive in order, once, and only while the receiver's
process is alive; a dead process's kernel says goodbye to its peers, a dead machine says nothing.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Protocol

from nilometer.runtime import Listener
from nilometer.runtime.network import ProtocolFactory
from nilometer.simulation.connection import Connection, VirtualTransport
from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop

CONNECT_TIMEOUT_S = 10.0
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


class Fabric:
    """All links and all listeners of a world."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, note: Callable[[str, str], None]) -> None:
        self.loop = loop
        self.chance = chance
        self.note = note
        self.hosts: dict[str, NetworkHost] = {}
        self.listeners: dict[tuple[str, int], VirtualListener] = {}
        self.connections: list[Connection] = []
        self.latency_ms: tuple[float, float] = (0.05, 0.5)
        self.hiccup = 0.0
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
        delay = self.chance.uniform(low, high)
        if source == target:
            delay /= 10
        elif self.hiccup and self.chance.random() < self.hiccup:
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


class VirtualListener:
    def __init__(self, fabric: Fabric, process: NetworkUser, factory: ProtocolFactory, port: int) -> None:
        self._fabric = fabric
        self.process = process
        self.factory = factory
        self.accepts = False
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        self.accepts = True

    def close(self) -> None:
        """The port is free again, unless it went to somebody else already."""
        if self._fabric.listeners.get((self.process.host.name, self._port)) is self:
            del self._fabric.listeners[self.process.host.name, self._port]


class VirtualNetwork:
    """One process's way into the network."""

    def __init__(self, fabric: Fabric, process: NetworkUser) -> None:
        self._fabric = fabric
        self._process = process

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        self._check_alive()
        own = self._process.host.name
        if host not in LOOPBACK and host != own:
            raise OSError(errno.EADDRNOTAVAIL, f"Cannot assign requested address {host}")
        port = port or self._fabric.next_port(own)
        if (own, port) in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, f"Address already in use: {host}:{port}")
        listener = VirtualListener(self._fabric, self._process, factory, port)
        self._fabric.listeners[own, port] = listener
        self._fabric.note(self._process.name, f"listens on {own}:{port}")
        return listener

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        self._check_alive()
        attempt = _Attempt(
            self._fabric, self._process, self._fabric.address(host, self._process.host.name), port
        )
        server = await attempt.answer()
        return attempt.establish(factory, server)

    def _check_alive(self) -> None:
        if not self._process.alive:
            raise ProcessGone


class _Attempt:
    """One try to connect: a packet there, a packet back, and patience."""

    def __init__(self, fabric: Fabric, process: NetworkUser, target: str, port: int) -> None:
        self._fabric = fabric
        self._loop = fabric.loop
        self._process = process
        self._source = process.host.name
        self._target = target
        self._port = port
        self._answer: asyncio.Future[VirtualListener] = fabric.loop.create_future()
        self._connection: Connection | None = None

    async def answer(self) -> VirtualListener:
        self._send()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._answer
        except TimeoutError:
            raise TimeoutError(errno.ETIMEDOUT, f"Connect to {self._target}:{self._port} timed out") from None

    def _send(self) -> None:
        if self._answer.done():
            return
        if self._fabric.is_cut(self._source, self._target):
            self._loop.in_process(self._fabric.chance.uniform(*RETRANSMIT_S), None, self._send)
            return
        self._loop.in_process(self._fabric.delay(self._source, self._target), None, self._arrive)

    def _arrive(self) -> None:
        """At the target's kernel, which answers whether its processes run or are stopped."""
        if self._answer.done():
            return
        if self._fabric.is_cut(self._target, self._source):
            self._loop.in_process(self._fabric.chance.uniform(*RETRANSMIT_S), None, self._send)
            return
        listener = self._fabric.listeners.get((self._target, self._port))
        if listener is not None and not listener.accepts:
            listener = None
        back = self._fabric.delay(self._target, self._source)
        self._loop.in_process(back, self._process, self._settle, listener)

    def _settle(self, listener: VirtualListener | None) -> None:
        if self._answer.done():
            return
        if listener is None:
            self._answer.set_exception(
                ConnectionRefusedError(errno.ECONNREFUSED, f"Connect to {self._target}:{self._port} refused")
            )
        else:
            self._answer.set_result(listener)

    def establish(self, factory: ProtocolFactory, listener: VirtualListener) -> asyncio.BaseProtocol:
        fabric = self._fabric
        number = fabric.next_number()
        connection = Connection(fabric, number, self._process, listener.process, self._port)
        fabric.connections.append(connection)
        fabric.note(self._process.name, f"connects {number} to {self._target}:{self._port}")
        client = connection.client
        protocol = factory()
        client.set_protocol(protocol)
        if not listener.process.alive or fabric.listeners.get((self._target, self._port)) is not listener:
            connection.on_process_gone(listener.process)
        else:
            self._loop.in_process(0.0, listener.process, self._accept, listener, connection.server)
        protocol.connection_made(client)
        client.begin()
        return protocol

    def _accept(self, listener: VirtualListener, transport: VirtualTransport) -> None:
        if transport.is_closing():
            return
        protocol = listener.factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.begin()
