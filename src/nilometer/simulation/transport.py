"""One end of a connection: an asyncio transport over two directions."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from typing import Any

from nilometer.simulation.direction import FIN, RST, Direction
from nilometer.simulation.fabric import Fabric, NetworkUser
from nilometer.simulation.loop import ProcessGone

SEGMENT_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024


class VirtualTransport(asyncio.Transport):
    def __init__(
        self,
        fabric: Fabric,
        process: NetworkUser,
        outgoing: Direction,
        incoming: Direction,
        own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._fabric = fabric
        self.on_closed: Callable[[], None] = lambda: None
        self.process = process
        self._outgoing = outgoing
        self._incoming = incoming
        self._protocol: asyncio.BaseProtocol | None = None
        self._out: deque[bytes] = deque()
        self._out_size = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._eof_wanted = False
        self._fin_sent = False
        self._in: deque[bytes] = deque()
        self._fin_received = False
        self._eof_told = False
        self._begun = False
        self._reading = True
        self._delivering = False
        self._closing = False
        self.closed = False

    # ---- asyncio's transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self.closed

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._tell_pressure()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._out_size

    def write(self, data: Any) -> None:
        self._check_alive()
        if self.closed:
            # As uvloop does between the end of a connection and the call of connection_lost, and after it.
            raise RuntimeError("unable to perform operation on a transport; the handler is closed")
        if self._closing or self._eof_wanted:
            return
        content = bytes(data)
        if content:
            self._out.append(content)
            self._out_size += len(content)
            self._pump()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._check_alive()
        self._eof_wanted = True
        self._pump()

    def close(self) -> None:
        self._check_alive()
        if not self.is_closing():
            self._closing = True
            self._pump()

    def abort(self) -> None:
        self._check_alive()
        if not self.closed:
            self._outgoing.send(RST)
            self._finish(None)

    # ---- sending

    def on_room(self) -> None:
        """Send more, because the other side has read data. Called by the simulation, not in the process."""
        if self._out and not self.closed:
            self._fabric.loop.in_process(0.0, self.process, self._pump)

    def _pump(self) -> None:
        while self._out and self._outgoing.room > 0 and not self.closed:
            segment = self._take(self._out, min(SEGMENT_BYTES, self._outgoing.room))
            self._out_size -= len(segment)
            self._outgoing.send(None, segment)
        self._tell_pressure()
        if not self._out and not self.closed:
            if (self._eof_wanted or self._closing) and not self._fin_sent:
                self._fin_sent = True
                self._outgoing.send(FIN)
            if self._closing:
                self._finish(None)

    def _tell_pressure(self) -> None:
        protocol = self._protocol
        if protocol is None or self.closed:
            return
        if not self._writing_paused and self._out_size > self._high:
            self._writing_paused = True
            protocol.pause_writing()
        elif self._writing_paused and self._out_size <= self._low:
            self._writing_paused = False
            protocol.resume_writing()

    @staticmethod
    def _take(parts: deque[bytes], limit: int) -> bytes:
        """Remove and return up to ``limit`` bytes from the front of ``parts``."""
        taken: list[bytes] = []
        while parts and limit > 0:
            part = parts.popleft()
            if len(part) > limit:
                parts.appendleft(part[limit:])
                part = part[:limit]
            taken.append(part)
            limit -= len(part)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    # ---- receiving

    def begin(self) -> None:
        """Start to deliver data, because the protocol's connection_made was called."""
        self._begun = True
        self._deliver_soon()

    def on_packet(self, sign: bytes | None, data: bytes) -> None:
        if sign == RST:
            self.on_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif self.closed:
            if sign is None:  # the end is closed: the kernel responds with a reset
                self._outgoing.send(RST)
        elif sign == FIN:
            self._fin_received = True
            self._deliver_soon()
        else:
            self._in.append(data)
            self._deliver_now()

    def _deliver_now(self) -> None:
        """Deliver at once if the process is running, else later. Called by the simulation."""
        process = self.process
        if not self._begun or self._delivering or not process.alive or process.paused:
            self._deliver_soon()
        else:
            self._delivering = True
            process.context.run(self._deliver)

    def _deliver_soon(self) -> None:
        if self._begun and not self._delivering and not self.closed and (self._in or self._fin_received):
            self._delivering = True
            self._fabric.loop.in_process(0.0, self.process, self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        try:
            while self._in and self.is_reading():
                data = self._take(self._in, READ_BYTES_MAX)
                self._incoming.read(len(data))
                self._feed(data)
            if self._fin_received and not self._in and not self._eof_told and not self.is_closing():
                self._eof_told = True
                protocol = self.get_protocol()
                assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
                if not protocol.eof_received():
                    self.close()
        except Exception as error:
            self._fabric.loop.call_exception_handler(
                {"message": "A protocol failed", "exception": error, "transport": self}
            )
            if not self.closed:
                self._outgoing.send(RST)
                self._finish(error)

    def _feed(self, data: bytes) -> None:
        protocol = self.get_protocol()
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self.closed:
                buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
                count = min(len(buffer), len(view))
                if count == 0:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:count] = view[:count]
                buffer.release()
                protocol.buffer_updated(count)
                view = view[count:]
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    # ---- the end

    def on_lost(self, error: OSError) -> None:
        """Handle the loss of the connection; the protocol is notified as soon as its process runs."""
        if not self.closed:
            self._fabric.loop.in_process(0.0, self.process, self._finish, error)

    def on_process_gone(self) -> None:
        """Close this end, as the kernel does for a process that died; silently if the machine died."""
        if self.closed:
            return
        self.closed = True
        if not self.process.host.up:
            self._outgoing.drop_all()
        elif self._in:
            self._outgoing.send(RST)
        elif not self._fin_sent:
            self._outgoing.send(FIN)

    def _finish(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._closing = True
        self._out.clear()
        self._out_size = 0
        self._in.clear()
        self.on_closed()
        if self._protocol is not None:
            self._fabric.loop.in_process(0.0, self.process, self._protocol.connection_lost, error)

    def _check_alive(self) -> None:
        if not self.process.alive:
            raise ProcessGone
