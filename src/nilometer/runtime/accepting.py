"""Listening sockets that accept their connections themselves, many in one turn of the event loop.

uvloop's own servers accept one connection in a turn (libuv 1.45 and newer). A turn takes as long as the
requests that have arrived: with a thousand busy clients 60 ms, so another thousand would wait for a minute.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial

logger = logging.getLogger("nilometer.runtime")

BACKLOG = 1024
ACCEPTED_AT_ONCE_MAX = 256
"""In one turn of the event loop: the clients that are connected wait meanwhile, some 20 ms."""
PAUSE_S = 1.0
"""Until connections are accepted again, when the process has no descriptor or memory left for one."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MISSING = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""The machine does not have the family, often IPv6, or the address, though the resolver gives it."""

TakeConnection = Callable[[socket.socket, tuple[str, int]], None]


class AcceptingSockets:
    """Bound sockets; from :meth:`start` on, each accepted connection is passed on with its peer's address."""

    def __init__(self, sockets: list[socket.socket], take: TakeConnection) -> None:
        """``take`` gets the connection, without blocking calls and with TCP_NODELAY, and has to close it."""
        self._sockets = sockets
        self._take = take
        self._loop = asyncio.get_running_loop()
        self.is_closed = False
        self.port: int = sockets[0].getsockname()[1]

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
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._take(connection, (peer[0], peer[1]))

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
