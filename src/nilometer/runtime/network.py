"""TCP connections, with or without TLS, as asyncio's transports and protocols: ``listen`` and ``connect``."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from nilometer.runtime.handshakes import HandshakeGate, OpenGate, ProtocolFactory, TlsAcceptance, Turns
from nilometer.runtime.tls import ClientTls, ServerContexts, ServerTls, client_context
from nilometer.runtime.tls_listener import TlsListener, bound_sockets


class Listener(Protocol):
    """A bound address; connections are accepted after :meth:`start`."""

    @property
    def port(self) -> int:
        """The bound port (chosen by the system if 0 was requested)."""
        ...

    async def start(self) -> None:
        """Accept connections from now on; before, they are refused."""
        ...

    def close(self) -> None:
        """Stop accepting and release the address. Connections stay open, except during a TLS handshake."""
        ...


class Network(Protocol):
    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        """Bind an address; each connection gets a new protocol from ``factory``.

        With ``tls``, ``connection_made`` is called after the handshake, and ``gate`` decides which
        handshakes begin. Raises OSError, with the reason, if the address cannot be bound, and TlsUnusable.
        """
        ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        """Connect and return the protocol, ``connection_made`` already called.

        Raises OSError, also if the TLS handshake fails, and TlsUnusable.
        """
        ...


class SocketListener:
    def __init__(self, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self._port = port

    @property
    def port(self) -> int:
        return self._port

    async def start(self) -> None:
        await self._server.start_serving()

    def close(self) -> None:
        self._server.close()


class SocketNetwork:
    """TCP through the running event loop."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def listen(
        self,
        factory: ProtocolFactory,
        host: str,
        port: int,
        tls: ServerTls | None = None,
        gate: HandshakeGate | None = None,
    ) -> Listener:
        if tls is not None:
            timeout_s = tls.handshake_timeout_ms / 1000
            context = ServerContexts(tls).first
            acceptance = TlsAcceptance(context, timeout_s, gate or OpenGate(), self._turns, factory)
            return TlsListener(await bound_sockets(host, port), acceptance)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host, port, backlog=1024, start_serving=False)
        return SocketListener(server, server.sockets[0].getsockname()[1])

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, tls: ClientTls | None = None
    ) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        if tls is None:
            transport, protocol = await loop.create_connection(factory, host, port)
        else:
            context = client_context(tls)
            transport, protocol = await loop.create_connection(factory, host, port, ssl=context)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol
