"""The network between simulated machines: links, delays and ports, and what one process sees of it: its
``Network``.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from nilometer.runtime import Listener
from nilometer.runtime.handshakes import HandshakeGate, OpenGate, ProtocolFactory
from nilometer.runtime.network import feed
from nilometer.runtime.tls import ClientTls, ServerTls
from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop

# The network between hosts: which links are cut, how long a packet takes, which ports are open.
#
# TCP hides loss, duplication and reordering inside a connection; so does this. Faults have the same effects
# as on a real network: delay, silence while a link is cut (packets wait, and arrive after it is healed),
# resets, and no guaranteed order between *different* connections.

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


# One process's view of the network: the simulation's implementation of ``Network``.
#
# Invariants: bytes of one direction of one connection arrive in order, once, and only while the receiver's
# process is alive; if a process dies its kernel closes its connections, if a machine dies its peers get
# nothing.

# One direction of a connection: the packets in transit from one end to the other.
#
# Its window counts the bytes that the receiver's *protocol* has not read yet, so a reader that pauses (or a
# process that is paused) causes ``pause_writing`` at the writer, as TCP does.

WINDOW_BYTES = 256 * 1024
USER_TIMEOUT_S = 120.0
"""The sender closes a connection on which nothing could be delivered for so long."""

FIN = b"fin"
RST = b"rst"
Packet = tuple[bytes | None, bytes]
"""(sign, data): a FIN or RST sign without data, or None with data."""


class Sender(Protocol):
    def on_room(self) -> None: ...

    def on_lost(self, error: OSError) -> None: ...


class Receiver(Protocol):
    closed: bool

    def on_packet(self, sign: bytes | None, data: bytes) -> None: ...


class Direction:
    """One direction. Invariant: packets arrive in the order in which they were sent."""

    def __init__(self, fabric: Fabric, label: str, source: str, target: str) -> None:
        self._fabric = fabric
        self._label = label
        self._source = source
        self._target = target
        self.sender: Sender
        self.receiver: Receiver
        self.observer: DirectionObserver | None = None
        self._queue: deque[Packet] = deque()
        self._last_arrival = 0.0
        self._stuck = 0
        self._stuck_since = 0.0
        self._unread = 0
        self._acks_lost = 0

    @property
    def room(self) -> int:
        return WINDOW_BYTES - self._unread

    @property
    def empty(self) -> bool:
        return not self._queue

    def send(self, sign: bytes | None, data: bytes = b"") -> None:
        self._unread += len(data)
        self._queue.append((sign, data))
        if self.observer is not None and data:
            self.observer.on_sent(data)
        now = self._fabric.loop.time()
        arrival = max(self._last_arrival, now + self._fabric.delay(self._source, self._target, len(data)))
        self._last_arrival = arrival
        self._fabric.loop.in_process(arrival - now, None, self._arrive)

    def drop_all(self) -> None:
        """Drop all packets in transit, because the sending machine lost power."""
        self._clear()

    def _clear(self) -> None:
        self._queue.clear()
        if self.observer is not None:
            self.observer.on_dropped()

    def read(self, size: int) -> None:
        """Record that the receiver read ``size`` bytes, and send the acknowledgement the other way."""
        if self._fabric.is_cut(self._target, self._source):
            self._acks_lost += size
        else:
            self._acknowledge(size)

    def on_heal(self, source: str, target: str) -> None:
        if (source, target) == (self._source, self._target) and self._stuck:
            stuck, self._stuck = self._stuck, 0
            for _ in range(stuck):
                self._fabric.loop.in_process(self._fabric.chance.uniform(0.2, 1.0), None, self._arrive)
        if (source, target) == (self._target, self._source) and self._acks_lost:
            lost, self._acks_lost = self._acks_lost, 0
            self._acknowledge(lost)

    def _acknowledge(self, size: int) -> None:
        self._unread -= size
        self.sender.on_room()

    def _arrive(self) -> None:
        if not self._queue:
            return  # the sending machine lost power
        if self._fabric.is_cut(self._source, self._target):
            self._stuck += 1
            if self._stuck == 1:
                self._stuck_since = self._fabric.loop.time()
                self._fabric.loop.in_process(USER_TIMEOUT_S, None, self._give_up, self._stuck_since)
            return
        sign, data = self._queue.popleft()
        if self.observer is not None and data:
            self.observer.on_arrived(len(data), not self.receiver.closed)
        self._fabric.note("network", f"{self._label} {sign.decode() if sign else len(data)}")
        self.receiver.on_packet(sign, data)

    def _give_up(self, stuck_since: float) -> None:
        if self._stuck and self._stuck_since == stuck_since:
            self._clear()
            self.sender.on_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))


# One end of a connection: an asyncio transport over two directions.

SEGMENT_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024


class VirtualTransport(asyncio.Transport):
    def __init__(
        self,
        fabric: Fabric,
        process: NetworkUser,
        outgoing: Direction,
        incoming: Direction,
        own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._fabric = fabric
        self.on_closed: Callable[[], None] = lambda: None
        self.process = process
        self._outgoing = outgoing
        self._incoming = incoming
        self._protocol: asyncio.BaseProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_size = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._eof_wanted = False
        self._fin_sent = False
        self._in: deque[bytes] = deque()
        self._fin_received = False
        self._eof_told = False
        self._begun = False
        self._reading = True
        self._delivering = False
        self._closing = False
        self.closed = False

    # ---- asyncio's transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self.closed

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._tell_pressure()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._out_size

    def write(self, data: Any) -> None:
        self._check_alive()
        if self.closed:
            # As uvloop does between the end of a connection and the call of connection_lost, and after it.
            raise RuntimeError("unable to perform operation on a transport; the handler is closed")
        if self._closing or self._eof_wanted:
            return
        content = bytes(data)
        if content:
            self._out.append(content)
            self._out_size += len(content)
            self._pump()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._check_alive()
        self._eof_wanted = True
        self._pump()

    def close(self) -> None:
        self._check_alive()
        if not self.is_closing():
            self._closing = True
            self._pump()

    def abort(self) -> None:
        self._check_alive()
        if not self.closed:
            self._outgoing.send(RST)
            self._finish(None)

    # ---- sending

    def on_room(self) -> None:
        """Send more, because the other side has read data. Called by the simulation, not in the process."""
        if self._out and not self.closed:
            self._fabric.loop.in_process(0.0, self.process, self._pump)

    def _pump(self) -> None:
        while self._out and self._outgoing.room > 0 and not self.closed:
            segment = self._take(self._out, min(SEGMENT_BYTES, self._outgoing.room))
            self._out_size -= len(segment)
            self._outgoing.send(None, segment)
        self._tell_pressure()
        if not self._out and not self.closed:
            if (self._eof_wanted or self._closing) and not self._fin_sent:
                self._fin_sent = True
                self._outgoing.send(FIN)
            if self._closing:
                self._finish(None)

    def _tell_pressure(self) -> None:
        protocol = self._protocol
        if protocol is None or self.closed:
            return
        if not self._writing_paused and self._out_size > self._high:
            self._writing_paused = True
            protocol.pause_writing()
        elif self._writing_paused and self._out_size <= self._low:
            self._writing_paused = False
            protocol.resume_writing()

    @staticmethod
    def _take(parts: deque[bytes], limit: int) -> bytes:
        """Remove and return up to ``limit`` bytes from the front of ``parts``."""
        taken: list[bytes] = []
        while parts and limit > 0:
            part = parts.popleft()
            if len(part) > limit:
                parts.appendleft(part[limit:])
                part = part[:limit]
            taken.append(part)
            limit -= len(part)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    # ---- receiving

    def begin(self) -> None:
        """Start to deliver data, because the protocol's connection_made was called."""
        self._begun = True
        self._deliver_soon()

    def on_packet(self, sign: bytes | None, data: bytes) -> None:
        if sign == RST:
            self.on_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif self.closed:
            if sign is None:  # the end is closed: the kernel responds with a reset
                self._outgoing.send(RST)
        elif sign == FIN:
            self._fin_received = True
            self._deliver_soon()
        else:
            self._in.append(data)
            self._deliver_now()

    def _deliver_now(self) -> None:
        """Deliver at once if the process is running, else later. Called by the simulation."""
        process = self.process
        if not self._begun or self._delivering or not process.alive or process.paused:
            self._deliver_soon()
        else:
            self._delivering = True
            process.context.run(self._deliver)

    def _deliver_soon(self) -> None:
        if self._begun and not self._delivering and not self.closed and (self._in or self._fin_received):
            self._delivering = True
            self._fabric.loop.in_process(0.0, self.process, self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        try:
            while self._in and self.is_reading():
                data = self._take(self._in, READ_BYTES_MAX)
                self._incoming.read(len(data))
                feed(self.get_protocol(), data, lambda: self.closed)
            if self._fin_received and not self._in and not self._eof_told and not self.is_closing():
                self._eof_told = True
                protocol = self.get_protocol()
                assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
                if not protocol.eof_received():
                    self.close()
        except Exception as error:
            self._fabric.loop.call_exception_handler(
                {"message": "A protocol failed", "exception": error, "transport": self}
            )
            if not self.closed:
                self._outgoing.send(RST)
                self._finish(error)

    # ---- the end

    def on_lost(self, error: OSError) -> None:
        """Handle the loss of the connection; the protocol is notified as soon as its process runs."""
        if not self.closed:
            self._fabric.loop.in_process(0.0, self.process, self._finish, error)

    def on_process_gone(self) -> None:
        """Close this end, as the kernel does for a process that died; silently if the machine died."""
        if self.closed:
            return
        self.closed = True
        if not self.process.host.up:
            self._outgoing.drop_all()
        elif self._in:
            self._outgoing.send(RST)
        elif not self._fin_sent:
            self._outgoing.send(FIN)

    def _finish(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._closing = True
        self._out.clear()
        self._out_size = 0
        self._in.clear()
        self.on_closed()
        if self._protocol is not None:
            self._fabric.loop.in_process(0.0, self.process, self._protocol.connection_lost, error)

    def _check_alive(self) -> None:
        if not self.process.alive:
            raise ProcessGone


# One connection: two ends and the two directions between them.


class Connection:
    def __init__(
        self, fabric: Fabric, number: int, client: NetworkUser, server: NetworkUser, server_port: int
    ) -> None:
        self._fabric = fabric
        self.number = number
        near, far = client.host.name, server.host.name
        self.hosts = (near, far)
        out = Direction(fabric, f"{number} {client.name}>{server.name}", near, far)
        back = Direction(fabric, f"{number} {server.name}>{client.name}", far, near)
        ends = (near, fabric.next_port(near)), (far, server_port)
        self.client = VirtualTransport(fabric, client, out, back, ends[0], ends[1])
        self.server = VirtualTransport(fabric, server, back, out, ends[1], ends[0])
        self.client.on_closed = self.server.on_closed = self.forget_if_done
        out.sender = back.receiver = self.client
        out.receiver = back.sender = self.server
        self._directions = (out, back)
        observers = fabric.observer.on_connection(client, server) if fabric.observer is not None else None
        if observers is not None:
            out.observer, back.observer = observers

    def is_open_to(self, server: object) -> bool:
        return self.server.process is server and not self.server.closed

    def on_heal(self, source: str, target: str) -> None:
        for direction in self._directions:
            direction.on_heal(source, target)

    def on_host_up(self, name: str) -> None:
        near, far = self.hosts
        self.on_heal(near, far)
        self.on_heal(far, near)
        self.forget_if_done()

    def on_process_gone(self, process: NetworkUser) -> None:
        for end in (self.client, self.server):
            if end.process is process:
                end.on_process_gone()
        self.forget_if_done()

    def reset(self) -> None:
        error = "reset by the network"
        for end in (self.client, self.server):
            end.on_lost(ConnectionResetError(errno.ECONNRESET, error))

    def forget_if_done(self) -> None:
        done = self.client.closed and self.server.closed
        if done and self in self._fabric.connections:
            self._fabric.connections.remove(self)


CONNECT_TIMEOUT_S = 10.0


class VirtualListener:
    def __init__(
        self,
        fabric: Fabric,
        process: NetworkUser,
        factory: ProtocolFactory,
        port: int,
        *,
        gate: HandshakeGate | None = None,
    ) -> None:
        """``gate``: with TLS, counts the handshakes."""
        self._fabric = fabric
        self.gate = gate
        self.has_tls = gate is not None
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
        """Release the port, unless another process has it already."""
        if self._fabric.listeners.get((self.process.host.name, self._port)) is self:
            del self._fabric.listeners[self.process.host.name, self._port]


class VirtualNetwork:
    """One process's view of the network."""

    def __init__(self, fabric: Fabric, process: NetworkUser) -> None:
        self._fabric = fabric
        self._process = process

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        """Nothing is encrypted; with ``tls``, only connections with TLS are accepted."""
        self._check_alive()
        own = self._process.host.name
        if host not in LOOPBACK and host != own:
            raise OSError(errno.EADDRNOTAVAIL, f"Cannot assign requested address {host}")
        port = port or self._fabric.next_port(own)
        if (own, port) in self._fabric.listeners:
            raise OSError(errno.EADDRINUSE, f"Address already in use: {host}:{port}")
        gate = None if tls is None else gate or OpenGate()
        listener = VirtualListener(self._fabric, self._process, factory, port, gate=gate)
        self._fabric.listeners[own, port] = listener
        self._fabric.note(self._process.name, f"listens on {own}:{port}")
        return listener

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        self._check_alive()
        attempt = Attempt(
            self._fabric, self._process, self._fabric.address(host, self._process.host.name), port
        )
        server = await attempt.answer()
        assert isinstance(server, VirtualListener), (
            f"the listener at {host}:{port} does not accept byte streams"
        )
        if server.has_tls != (tls is not None):
            raise ConnectionResetError(errno.ECONNRESET, f"{host}:{port}: only one side uses TLS")
        return attempt.establish(factory, server)

    def _check_alive(self) -> None:
        if not self._process.alive:
            raise ProcessGone


class Attempt:
    """One attempt to connect: a packet there and a packet back, retransmitted until the timeout."""

    def __init__(self, fabric: Fabric, process: NetworkUser, target: str, port: int) -> None:
        self._fabric = fabric
        self._loop = fabric.loop
        self._process = process
        self._source = process.host.name
        self._target = target
        self._port = port
        self._answer: asyncio.Future[Listening] = fabric.loop.create_future()
        self._connection: Connection | None = None

    async def answer(self) -> Listening:
        """Return the listener at the target. Raises TimeoutError, ConnectionRefusedError."""
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
        """Handle the packet at the target's kernel, which responds also if the process is paused."""
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

    def _settle(self, listener: Listening | None) -> None:
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
        if listener.gate is None:
            self._serve(listener, transport)
            return
        address, port = transport.get_extra_info("peername")
        admitted = listener.gate.begin(address, port)
        if admitted is None:
            transport.abort()
            return
        done = self._refuse if admitted.ends else self._serve
        if not admitted.wait_ms:
            done(listener, transport)
            return
        self._loop.in_process(admitted.wait_ms / 1000, listener.process, done, listener, transport)

    def _refuse(self, listener: VirtualListener, transport: VirtualTransport) -> None:
        assert listener.gate is not None
        listener.gate.end(transport.get_extra_info("peername")[0])
        transport.abort()

    def _serve(self, listener: VirtualListener, transport: VirtualTransport) -> None:
        if listener.gate is not None:
            listener.gate.end(transport.get_extra_info("peername")[0])
        if transport.is_closing():
            return
        protocol = listener.factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.begin()
