"""TCP connections, with or without TLS, as asyncio's transports and protocols: ``listen`` and ``connect``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from nilometer.runtime.tls import ClientTls, ServerContexts, ServerTls, client_context

SHUTDOWN_TIMEOUT_S = 5.0
"""How long the end of a TLS connection waits for the other side."""

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


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
        """Stop accepting and release the address. Existing connections stay open."""
        ...


class Network(Protocol):
    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ServerTls | None = None
    ) -> Listener:
        """Bind an address; each connection gets a new protocol from ``factory``.

        With ``tls``, ``connection_made`` is called after the handshake. Raises OSError, with the reason, if
        the address cannot be bound, and TlsUnusable.
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

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, tls: ServerTls | None = None
    ) -> Listener:
        loop = asyncio.get_running_loop()
        if tls is None:
            server = await loop.create_server(factory, host, port, backlog=1024, start_serving=False)
        else:
            server = await loop.create_server(
                factory,
                host,
                port,
                backlog=1024,
                start_serving=False,
                ssl=ServerContexts(tls).first,
                ssl_handshake_timeout=tls.handshake_timeout_ms / 1000,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
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
