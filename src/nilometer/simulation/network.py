"""One process's view of the network: the simulation's implementation of ``Network``.

Invariants: bytes of one direction of one connection arrive in order, once, and only while the receiver's
process is alive; if a process dies its kernel closes its connections, if a machine dies its peers get
nothing.
"""

from __future__ import annotations

import asyncio
import errno

from nilometer.runtime import Listener
from nilometer.runtime.handshakes import HandshakeGate, OpenGate, ProtocolFactory
from nilometer.runtime.tls import ClientTls, ServerTls
from nilometer.simulation.connection import Connection
from nilometer.simulation.fabric import LOOPBACK, RETRANSMIT_S, Fabric, Listening, NetworkUser
from nilometer.simulation.loop import ProcessGone
from nilometer.simulation.transport import VirtualTransport

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
