"""A listener with TLS: it accepts connections itself, so that their address is known before the handshake.

(asyncio's servers tell nothing of a connection before its handshake is done, nor that it has failed.)
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from functools import partial

from nilometer.runtime.handshakes import Handshake, TlsAcceptance

logger = logging.getLogger("nilometer.tls")

BACKLOG = 1024
ACCEPTED_AT_ONCE_MAX = 64
"""In one turn of the event loop."""
PAUSE_S = 1.0
"""Until connections are accepted again, when the process has no descriptor or memory left for one."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsListener:
    def __init__(self, sockets: list[socket.socket], acceptance: TlsAcceptance) -> None:
        self._sockets = sockets
        self._acceptance = acceptance
        self._handshakes: dict[Handshake, None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self.port: int = sockets[0].getsockname()[1]

    async def start(self) -> None:
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        for handshake in list(self._handshakes):
            handshake.abort("the listener is closed")

    def _accept(self, listening: socket.socket) -> None:
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
            self._begin(connection, (peer[0], peer[1]))

    def _resume(self, listening: socket.socket) -> None:
        if not self._is_closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _begin(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        admitted = self._acceptance.gate.begin(*peer)
        if admitted is None:
            connection.close()
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        handshake = Handshake(connection, peer, self._acceptance, self._forget)
        self._handshakes[handshake] = None
        handshake.begin(admitted)

    def _forget(self, handshake: Handshake) -> None:
        del self._handshakes[handshake]


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a socket bound to each address of ``host``; all, if it is empty. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets
