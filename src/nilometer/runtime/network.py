"""TCP connections, with or without TLS, as asyncio's transports and protocols: ``listen`` and ``connect``."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from nilometer.runtime.handshakes import (
    Handshake,
    HandshakeGate,
    OpenGate,
    ProtocolFactory,
    TlsAcceptance,
    Turns,
)
from nilometer.runtime.tls import ClientTls, ServerContexts, ServerTls, client_context

# How the descriptors of the process are divided: a part is kept for files, whatever clients do.
#
# Without a descriptor no log can be written, and a log directory that cannot be written is taken offline: a
# client that only opens connections would stop the broker.

FOR_FILES_MAX = 1_280
"""At most so many are kept for files; of few descriptors the half."""


def descriptors_max() -> int:
    """Return how many descriptors the process may have now."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if limit == resource.RLIM_INFINITY else limit


def kept_for_files() -> int:
    """Return how many descriptors are for files; the others are for connections."""
    return min(FOR_FILES_MAX, descriptors_max() // 2)


def open_files_max() -> int:
    """Return how many files may be kept open; some are needed for a moment beside them."""
    return kept_for_files() * 4 // 5


# Listening sockets that accept their connections themselves, many in one turn of the event loop.
#
# uvloop's own servers accept one connection in a turn (libuv 1.45 and newer). A turn takes as long as the
# requests that have arrived: with a thousand busy clients 60 ms, so another thousand would wait for a minute.

logger = logging.getLogger("nilometer.runtime")

BACKLOG = 1024
ACCEPTED_AT_ONCE_MAX = 256
"""In one turn of the event loop: the clients that are connected wait meanwhile, some 20 ms."""
PAUSE_S = 1.0
"""Until connections are accepted again, when the process has no descriptor or memory left for one."""
NOTE_EVERY_S = 10.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MISSING = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""The machine does not have the family, often IPv6, or the address, though the resolver gives it."""

TakeConnection = Callable[[socket.socket, tuple[str, int]], None]


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach ``host``, a name or an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AcceptingSockets:
    """Bound sockets; from :meth:`start` on, each accepted connection is passed on with its peer's address."""

    def __init__(self, sockets: list[socket.socket], take: TakeConnection) -> None:
        """``take`` gets the connection, without blocking calls and with TCP_NODELAY, and has to close it."""
        self._sockets = sockets
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.is_closed = False
        self.port: int = sockets[0].getsockname()[1]
        self._noted_s = -NOTE_EVERY_S

    def start(self) -> None:
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Release the addresses. Ignored if they are released."""
        if self.is_closed:
            return
        self.is_closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()

    def _accept(self, listening: socket.socket) -> None:
        connections_end = descriptors_max() - kept_for_files()
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("No connection can be accepted for %g s: %s", PAUSE_S, error.strerror)
                self._loop.remove_reader(listening)
                self._loop.call_later(PAUSE_S, partial(self._resume, listening))
                return
            if connection.fileno() >= connections_end:  # the system gives the lowest that is free
                connection.close()
                self._note_refused(f"{connections_end} descriptors are in use, the others are for files")
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._take(connection, (peer[0], peer[1]))

    def _note_refused(self, why: str) -> None:
        now_s = self._loop.time()
        if now_s >= self._noted_s + NOTE_EVERY_S:
            self._noted_s = now_s
            logger.error("Connections are closed at once: %s", why)

    def _resume(self, listening: socket.socket) -> None:
        if not self.is_closed:
            self._loop.add_reader(listening, self._accept, listening)


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of ``host`` that the machine has; all, if it is empty.

    Raises OSError.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sockets.append(_bound(family, kind, protocol, address))
            except OSError as error:
                if error.errno not in _MISSING:
                    raise
                missing = error
        if missing is not None and not sockets:
            raise missing
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


# A listener with TLS: it accepts connections itself, so that their address is known before the handshake.
#
# (asyncio's servers tell nothing of a connection before its handshake is done, nor that it has failed.)


class TlsListener:
    def __init__(self, sockets: list[socket.socket], acceptance: TlsAcceptance) -> None:
        self._accepting = AcceptingSockets(sockets, self._begin)
        self._acceptance = acceptance
        self._handshakes: dict[Handshake, None] = {}

    @property
    def port(self) -> int:
        return self._accepting.port

    async def start(self) -> None:
        self._accepting.start()

    def close(self) -> None:
        if self._accepting.is_closed:
            return
        self._accepting.close()
        for handshake in list(self._handshakes):
            handshake.abort("the listener is closed")

    def _begin(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        admitted = self._acceptance.gate.begin(*peer)
        if admitted is None:
            connection.close()
            return
        oldest = next(iter(self._handshakes), None)
        if admitted.replaces_oldest and oldest is not None:
            oldest.abort("too many connections are in their TLS handshake")
        handshake = Handshake(connection, peer, self._acceptance, self._forget)
        self._handshakes[handshake] = None
        handshake.begin(admitted)

    def _forget(self, handshake: Handshake) -> None:
        del self._handshakes[handshake]


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

    def __init__(self, local_host: str | None = None) -> None:
        """``local_host``: the address from which it connects; by default the system chooses one."""
        self._turns = Turns()
        self._from = None if local_host is None else (local_host, 0)

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
            transport, protocol = await loop.create_connection(factory, host, port, local_addr=self._from)
        else:
            context = client_context(tls)
            transport, protocol = await loop.create_connection(
                factory, host, port, ssl=context, local_addr=self._from
            )
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return protocol


def feed(protocol: asyncio.BaseProtocol, data: bytes, is_closed: Callable[[], bool]) -> None:
    """Give ``data`` to a protocol of either kind, as an event loop does, until its connection is closed.

    Raises RuntimeError if the protocol has no room for it.
    """
    if not isinstance(protocol, asyncio.BufferedProtocol):
        cast(asyncio.Protocol, protocol).data_received(data)
        return
    view = memoryview(data)
    while view and not is_closed():
        buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
        count = min(len(buffer), len(view))
        if count == 0:
            raise RuntimeError("get_buffer() returned an empty buffer")
        buffer[:count] = view[:count]
        buffer.release()
        protocol.buffer_updated(count)
        view = view[count:]
