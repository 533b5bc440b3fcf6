"""The TLS handshakes of accepted connections: which begin, and when.

A handshake costs a signature, on the thread that serves all clients. So none begins before the client has
sent its whole first message, and one begins in each turn of the event loop: the clients that are connected
are served between two handshakes, and addresses whose clients wait take turns.

TLS 1.3 lets a client have the signature later: by a first message in two records, or without a key share that
the server can use. How many such signatures come in one turn is bounded by the gate only.

Invariants:

- A connection that waits holds its socket and nothing of TLS.
- What :meth:`HandshakeGate.begin` counts, :meth:`HandshakeGate.end` ends, once.
- A connection ends when the time of its handshake is over, whatever it has sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

logger = logging.getLogger("nilometer.tls")

SHUTDOWN_TIMEOUT_S = 5.0
"""How long the end of a TLS connection waits for the other side."""
_RECORD_HEADER_BYTES = 5
_HANDSHAKE_RECORD = 0x16
_RECORD_BYTES_MAX = _RECORD_HEADER_BYTES + 16_384

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A connection whose handshake may begin after ``wait_ms``; if ``ends``, it is closed then instead.
    ``replaces_oldest``: the oldest handshake of the listener ends for it."""

    wait_ms: int = 0
    ends: bool = False
    replaces_oldest: bool = False


class HandshakeGate(Protocol):
    """Counts the handshakes of a listener."""

    def begin(self, address: str, port: int) -> Admitted | None:
        """Count a new connection of ``address``; None, and nothing counted, if it must be closed."""
        ...

    def end(self, address: str) -> None:
        """Count a connection no longer: it has ended, or its protocol's ``connection_made`` comes next, in
        the same turn."""
        ...


class OpenGate:
    """Limits nothing."""

    def begin(self, address: str, port: int) -> Admitted | None:
        return Admitted()

    def end(self, address: str) -> None:
        pass


class Turns:
    """Calls one function in each turn of the event loop; addresses with several take turns."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Callable[[], None], None]] = {}
        self._is_scheduled = False

    def add(self, address: str, begin: Callable[[], None]) -> None:
        self._waiting.setdefault(address, {})[begin] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def withdraw(self, address: str, begin: Callable[[], None]) -> None:
        """Do not call ``begin``, if it waits: it takes no turn, and no memory."""
        queue = self._waiting.get(address, {})
        queue.pop(begin, None)
        if not queue:
            self._waiting.pop(address, None)

    def _next(self) -> None:
        if not self._waiting:
            self._is_scheduled = False
            return
        address = next(iter(self._waiting))
        queue = self._waiting.pop(address)
        begin = next(iter(queue))
        del queue[begin]
        if queue:
            self._waiting[address] = queue  # behind all others
        self._is_scheduled = bool(self._waiting)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        begin()


@dataclass(frozen=True, slots=True)
class TlsAcceptance:
    """What the handshakes of one listener share."""

    context: ssl.SSLContext
    timeout_s: float
    """From the first byte that may be sent to the end of the handshake."""
    gate: HandshakeGate
    turns: Turns
    make: ProtocolFactory
    """Makes the protocol of a connection whose handshake is done."""


class Handshake:
    """One accepted connection, from its first byte until its protocol has it, or its end."""

    def __init__(
        self,
        connection: socket.socket,
        peer: tuple[str, int],
        acceptance: TlsAcceptance,
        ended: Callable[[Handshake], None],
    ) -> None:
        """``ended`` is called once, when the connection is served or has ended."""
        self._socket = connection
        self._peer = peer
        self._shared = acceptance
        self._notify = ended
        self._loop = asyncio.get_running_loop()
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._is_read = False
        self._expects_rest = False
        self._has_transport = False
        self._is_over = False

    def begin(self, admitted: Admitted) -> None:
        wait_s = admitted.wait_ms / 1000
        self._deadline = self._loop.time() + wait_s + self._shared.timeout_s
        if admitted.ends:
            reason = "too many connections per second from its address"
            self._timer = self._loop.call_later(wait_s, self.abort, reason)
        elif wait_s:
            self._timer = self._loop.call_later(wait_s, self._listen)
        else:
            self._listen()

    def abort(self, reason: str) -> None:
        """End the connection, unless it is served; ``reason`` is logged."""
        if not self._end():
            return
        logger.info("Closing the connection from %s:%d: %s", *self._peer, reason)
        if self._task is not None:
            self._task.cancel()
        if not self._has_transport:  # else that closes the socket
            self._socket.close()

    def _end(self) -> bool:
        """End the handshake; return whether it had not ended before."""
        if self._is_over:
            return False
        self._is_over = True
        self._stop_listening()
        self._shared.turns.withdraw(self._peer[0], self._shake)
        if self._timer is not None:
            self._timer.cancel()
        self._shared.gate.end(self._peer[0])
        self._notify(self)
        return True

    # --- until the client's first message is there

    def _listen(self) -> None:
        expired = f"its TLS handshake was not done within {self._shared.timeout_s * 1000:.0f} ms"
        self._timer = self._loop.call_at(self._deadline, self.abort, expired)
        self._wake_at(_RECORD_HEADER_BYTES)
        self._is_read = True
        self._loop.add_reader(self._socket, self._on_readable)

    def _stop_listening(self) -> None:
        if self._is_read:
            self._is_read = False
            self._loop.remove_reader(self._socket)

    def _wake_at(self, size: int) -> None:
        """Have the socket count as readable from ``size`` bytes on, or at its end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _on_readable(self) -> None:
        try:
            seen = self._socket.recv(_RECORD_BYTES_MAX, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(_failed(error))
            return
        if not seen:
            self.abort("it ended before its TLS handshake")
            return
        missing = _first_record_bytes(seen) - len(seen)
        if missing > 0 and not self._expects_rest:
            self._expects_rest = True  # at the next time it is complete, or its end has come
            self._wake_at(len(seen) + missing)
            return
        self._stop_listening()
        self._wake_at(1)
        self._shared.turns.add(self._peer[0], self._shake)

    # --- the handshake

    def _shake(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        self._has_transport = True
        try:
            await self._loop.connect_accepted_socket(
                lambda: _Opening(self._shared.make, self._end),
                self._socket,
                ssl=self._shared.context,
                ssl_handshake_timeout=max(self._deadline - self._loop.time(), 0.001),
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
        except OSError as error:  # ssl.SSLError is an OSError, and so is the end of the time
            self.abort(_failed(error))


class _Opening(asyncio.BufferedProtocol):
    """The protocol of a connection during its handshake: it has no data yet."""

    def __init__(self, make: ProtocolFactory, done: Callable[[], bool]) -> None:
        """``done`` returns whether the connection may be served: it may have been aborted."""
        self._make = make
        self._done = done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._done():
            cast(asyncio.Transport, transport).abort()  # uvloop's transports are not derived from it
            return
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _first_record_bytes(seen: bytes) -> int:
    """Return the size of the TLS record that ``seen`` begins with; 0 if that is no handshake of TLS."""
    if len(seen) < _RECORD_HEADER_BYTES or seen[0] != _HANDSHAKE_RECORD:
        return 0
    size = _RECORD_HEADER_BYTES + int.from_bytes(seen[3:5], "big")
    return size if size <= _RECORD_BYTES_MAX else 0


def _failed(error: OSError) -> str:
    reason = getattr(error, "reason", None) or error.strerror or str(error) or type(error).__name__
    return f"its TLS handshake failed: {reason}"
