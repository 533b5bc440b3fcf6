"""TCP connections, with asyncio's transports and protocols: ``listen`` and ``connect``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

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
    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        """Bind an address; each connection gets a new protocol from ``factory``.

        Raises OSError, with the reason, if the address cannot be bound.
        """
        ...

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        """Connect and return the protocol, ``connection_made`` already called. Raises OSError."""
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

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(factory, host, port, backlog=1024, start_serving=False)
        return SocketListener(server, server.sockets[0].getsockname()[1])

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.BaseProtocol:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_connection(factory, host, port)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol
