"""Sends mutated frames over several connections at once, each followed by a harmless request.

A connection sends one mutated frame at a time and is opened again whenever the broker closes it. After every
frame a harmless request is sent: either its response arrives, which shows that the broker has consumed the
frame, or the connection ends. If neither happens within ``PATIENCE_S``, the connection is stuck because of
that frame. After a frame with a wrong length the stream is ended instead, since a following request would be
taken as a part of it.

Invariant: before the response to the harmless request at most one arrives, with the frame's correlation id.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator

from ..ports import HOST
from .frame_fuzzer import Kind, MutatedFrame

PATIENCE_S = 60.0
_QUESTION_ID = 0x7FFF_FFF0
_QUESTION_BODY = struct.pack(">hhihii", 21, 0, _QUESTION_ID, -1, 0, 1000)
_QUESTION = struct.pack(">i", len(_QUESTION_BODY)) + _QUESTION_BODY
"""The harmless request: DeleteRecords without topics."""
_ABORT = struct.pack("ii", 1, 0)
_RECEIVE_BYTES = 256 * 1024


class Stuck(AssertionError):
    """A connection got neither a response nor its end in time."""


class FuzzConnections:
    """``drive`` sends all frames. ``answered`` and ``closed`` count how the frames ended."""

    def __init__(self, port: int, count: int, connect: Callable[[], socket.socket] | None = None) -> None:
        """``connect`` opens a connection that has logged in, if there is need of that. With TLS no frame may
        have a wrong length, as a stream with TLS cannot be ended on one side only."""
        self._port = port
        self._count = count
        self._connect = connect
        self.sent = 0
        self.answered = 0
        self.closed = 0
        self.last_frame_of_port: dict[int, MutatedFrame] = {}
        """Client port to the last frame sent from it: brokers' log lines name the port."""

    def drive(self, frames: Iterator[MutatedFrame]) -> None:
        """Send all frames. Raises Stuck, or OSError if the broker accepts no connections any more."""
        selector = selectors.DefaultSelector()
        connections = [_FuzzConnection(self, selector) for _ in range(self._count)]
        try:
            busy = sum(connection.take(next(frames, None)) for connection in connections)
            while busy:
                events = selector.select(timeout=1.0)
                for key, _ in events:
                    connection: _FuzzConnection = key.data
                    if connection.receive():
                        busy -= not connection.take(next(frames, None))
                if not events:
                    self._refuse_stuck(connections)
        finally:
            for connection in connections:
                connection.close()
            selector.close()

    def connect(self) -> socket.socket:
        if self._connect is not None:
            return self._connect()
        return socket.create_connection((HOST, self._port), timeout=PATIENCE_S)

    @staticmethod
    def _refuse_stuck(connections: list[_FuzzConnection]) -> None:
        now = time.monotonic()
        stuck = [
            connection.frame
            for connection in connections
            if connection.frame is not None and now > connection.deadline
        ]
        if stuck:
            raise Stuck("no answer, no end: " + "; ".join(frame.describe() for frame in stuck))


class _FuzzConnection:
    def __init__(self, connections: FuzzConnections, selector: selectors.BaseSelector) -> None:
        self._connections = connections
        self._selector = selector
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._has_answer = False
        self.frame: MutatedFrame | None = None
        self.deadline = 0.0

    def take(self, frame: MutatedFrame | None) -> bool:
        """Send the next frame; False when there is none."""
        self.frame = frame
        self._has_answer = False
        if frame is None:
            return False
        self._connections.sent += 1
        ends = frame.kind is Kind.WRONG_LENGTH
        while True:
            connection = self._socket or self._open()
            self._connections.last_frame_of_port[connection.getsockname()[1]] = frame
            try:
                connection.sendall(frame.frame if ends else frame.frame + _QUESTION)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
                break
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                # The broker closed the connection after the response to the previous frame: open another.
                self._drop()
        self.deadline = time.monotonic() + PATIENCE_S
        return True

    def receive(self) -> bool:
        """Read received bytes; return True when the frame's response or the connection's end has arrived."""
        assert self._socket is not None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
            while isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
                data += self._socket.recv(_RECEIVE_BYTES)
        except (ConnectionResetError, ssl.SSLError):
            data = b""
        if not data:
            self._connections.closed += 1
            self._drop()
            return True
        self._received += data
        return self._question_answered()

    def _question_answered(self) -> bool:
        received = self._received
        while len(received) >= 8:
            size, correlation_id = struct.unpack_from(">ii", received)
            if size < 4:
                raise AssertionError(f"a response of {size} bytes to {self.frame}")
            if len(received) < 4 + size:
                return False
            del received[: 4 + size]
            if correlation_id == _QUESTION_ID:
                self._connections.answered += 1
                return True
            self._check_answer(correlation_id)
        return False

    def _check_answer(self, correlation_id: int) -> None:
        frame = self.frame
        assert frame is not None
        if frame.kind is Kind.WRONG_LENGTH:
            return  # it may be several requests
        (expected,) = struct.unpack_from(">i", frame.frame, 8)
        if self._has_answer or correlation_id != expected:
            raise AssertionError(f"a response to the wrong request, {correlation_id}: {frame.describe()}")
        self._has_answer = True

    def _open(self) -> socket.socket:
        self._socket = self._connections.connect()
        self._received.clear()
        self._selector.register(self._socket, selectors.EVENT_READ, self)
        return self._socket

    def _drop(self) -> None:
        if self._socket is not None:
            self._selector.unregister(self._socket)
            # Reset the connection: its port is free again at once, and the broker sees resets too.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self._drop()
