"""TCP connections, with or without TLS, as asyncio's transports and protocols: ``listen`` and ``connect``."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Protocol

from nilometer.runtime.accepting import AcceptingSockets, bound_sockets
from nilometer.runtime.handshakes import HandshakeGate, OpenGate, ProtocolFactory, TlsAcceptance, Turns
from nilometer.runtime.tls import ClientTls, ServerContexts, ServerTls, client_context
from nilometer.runtime.tls_listener import TlsListener

logger = logging.getLogger("nilometer.runtime")


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
    """A listener without TLS."""

    def __init__(self, sockets: list[socket.socket], factory: ProtocolFactory) -> None:
        self._accepting = AcceptingSockets(sockets, self._begin)
        self._factory = factory
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Task[None], None] = {}

    @property
    def port(self) -> int:
        return self._accepting.port

    async def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        self._accepting.close()
        for opening in list(self._opening):
            opening.cancel()

    def _begin(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        opening = self._loop.create_task(self._open(connection, peer))
        self._opening[opening] = None
        opening.add_done_callback(partial(self._forget, connection))

    async def _open(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, connection)
        except OSError as error:
            logger.info("The connection from %s:%d has ended: %s", *peer, error.strerror)

    def _forget(self, connection: socket.socket, opening: asyncio.Task[None]) -> None:
        del self._opening[opening]
        if opening.cancelled():  # perhaps before it began: then no transport closes the socket
            connection.close()


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
        return SocketListener(await bound_sockets(host, port), factory)

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
