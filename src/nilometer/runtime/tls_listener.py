"""A listener with TLS: it accepts connections itself, so that their address is known before the handshake.

(asyncio's servers tell nothing of a connection before its handshake is done, nor that it has failed.)
"""

from __future__ import annotations

import socket

from nilometer.runtime.accepting import AcceptingSockets
from nilometer.runtime.handshakes import Handshake, TlsAcceptance


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
        handshake = Handshake(connection, peer, self._acceptance, self._forget)
        self._handshakes[handshake] = None
        handshake.begin(admitted)

    def _forget(self, handshake: Handshake) -> None:
        del self._handshakes[handshake]
