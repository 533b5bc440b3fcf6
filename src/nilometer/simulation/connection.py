"""One connection: two transports and the two directions between them.

A direction holds what is under way. Its window counts what the receiver's *protocol* has not read yet, so a
reader that pauses (or a process that is stopped) makes the writer's ``pause_writing`` come, as TCP does.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from typing import TYPE_CHECKING, Any

from nilometer.simulation.loop import ProcessGone

if TYPE_CHECKING:
    from nilometer.simulation.network import Fabric, NetworkUser

WINDOW_BYTES = 256 * 1024
SEGMENT_BYTES = 64 * 1024
READ_BYTES_MAX = 256 * 1024
HIGH_WATER_BYTES = 64 * 1024
USER_TIMEOUT_S = 120.0
"""A direction that could not deliver for so long is given up by its sender."""

FIN = b"fin"
RST = b"rst"
Packet = tuple[bytes | None, bytes]
"""(a sign, data): a sign stands alone."""


class Direction:
    """From one end to the other. Invariant: packets arrive in the order they were sent."""

    def __init__(self, fabric: Fabric, label: str, source: str, target: str) -> None:
        self._fabric = fabric
        self._label = label
        self._source = source
        self._target = target
        self.sender: VirtualTransport
        self.receiver: VirtualTransport
        self._queue: deque[Packet] = deque()
        self._last_arrival = 0.0
        self._stuck = 0
        self._stuck_since = 0.0
        self._unread = 0
        self._acks_lost = 0

    @property
    def room(self) -> int:
        return WINDOW_BYTES - self._unread

    @property
    def empty(self) -> bool:
        return not self._queue

    def send(self, sign: bytes | None, data: bytes = b"") -> None:
        self._unread += len(data)
        self._queue.append((sign, data))
        now = self._fabric.loop.time()
        arrival = max(self._last_arrival, now + self._fabric.delay(self._source, self._target, len(data)))
        self._last_arrival = arrival
        self._fabric.loop.in_process(arrival - now, None, self._arrive)

    def drop_all(self) -> None:
        """The sending machine lost power: what it had not got out is gone."""
        self._queue.clear()

    def read(self, size: int) -> None:
        """The receiver took ``size`` bytes; the acknowledgement goes the other way."""
        if self._fabric.is_cut(self._target, self._source):
            self._acks_lost += size
        else:
            self._acknowledge(size)

    def on_heal(self, source: str, target: str) -> None:
        if (source, target) == (self._source, self._target) and self._stuck:
            stuck, self._stuck = self._stuck, 0
            for _ in range(stuck):
                self._fabric.loop.in_process(self._fabric.chance.uniform(0.2, 1.0), None, self._arrive)
        if (source, target) == (self._target, self._source) and self._acks_lost:
            lost, self._acks_lost = self._acks_lost, 0
            self._acknowledge(lost)

    def _acknowledge(self, size: int) -> None:
        self._unread -= size
        self.sender.on_room()

    def _arrive(self) -> None:
        if not self._queue:
            return  # its machine lost power
        if self._fabric.is_cut(self._source, self._target):
            self._stuck += 1
            if self._stuck == 1:
                self._stuck_since = self._fabric.loop.time()
                self._fabric.loop.in_process(USER_TIMEOUT_S, None, self._give_up, self._stuck_since)
            return
        sign, data = self._queue.popleft()
        self._fabric.note("network", f"{self._label} {sign.decode() if sign else len(data)}")
        self.receiver.on_packet(sign, data)

    def _give_up(self, stuck_since: float) -> None:
        if self._stuck and self._stuck_since == stuck_since:
            self._queue.clear()
            self.sender.on_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))


class Connection:
    def __init__(
        self, fabric: Fabric, number: int, client: NetworkUser, server: NetworkUser, server_port: int
    ) -> None:
        self._fabric = fabric
        self.number = number
        near, far = client.host.name, server.host.name
        self.hosts = (near, far)
        out = Direction(fabric, f"{number} {client.name}>{server.name}", near, far)
        back = Direction(fabric, f"{number} {server.name}>{client.name}", far, near)
        ends = (near, fabric.next_port(near)), (far, server_port)
        self.client = VirtualTransport(fabric, self, client, out, back, ends[0], ends[1])
        self.server = VirtualTransport(fabric, self, server, back, out, ends[1], ends[0])
        out.sender = back.receiver = self.client
        out.receiver = back.sender = self.server
        self._directions = (out, back)

    def on_heal(self, source: str, target: str) -> None:
        for direction in self._directions:
            direction.on_heal(source, target)

    def on_host_up(self, name: str) -> None:
        near, far = self.hosts
        self.on_heal(near, far)
        self.on_heal(far, near)
        self.forget_if_done()

    def on_process_gone(self, process: NetworkUser) -> None:
        for end in (self.client, self.server):
            if end.process is process:
                end.on_process_gone()
        self.forget_if_done()

    def reset(self) -> None:
        error = "reset by the network"
        for end in (self.client, self.server):
            end.on_lost(ConnectionResetError(errno.ECONNRESET, error))

    def forget_if_done(self) -> None:
        done = self.client.closed and self.server.closed
        if done and self in self._fabric.connections:
            self._fabric.connections.remove(self)


class VirtualTransport(asyncio.Transport):
    def __init__(
        self,
        fabric: Fabric,
        connection: Connection,
        process: NetworkUser,
        outgoing: Direction,
        incoming: Direction,
        own: tuple[str, int],
        peer: tuple[str, int],
    ) -> None:
        super().__init__({"sockname": own, "peername": peer})
        self._fabric = fabric
        self._connection = connection
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
        if self.is_closing() or self._eof_wanted:
            return  # as asyncio: who writes to a lost connection learns it from connection_lost
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
        """The other side read something (the world tells: our process may be stopped)."""
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
        """Up to ``limit`` bytes from the front of ``parts``."""
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
        """The protocol is connected: what came before may be delivered."""
        self._begun = True
        self._deliver_soon()

    def on_packet(self, sign: bytes | None, data: bytes) -> None:
        if sign == RST:
            self.on_lost(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        elif self.closed:
            if sign is None:  # nobody is here any more: the kernel says so
                self._outgoing.send(RST)
        elif sign == FIN:
            self._fin_received = True
            self._deliver_soon()
        else:
            self._in.append(data)
            self._deliver_soon()

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
        """Broken from outside, told to the protocol as soon as its process runs."""
        if not self.closed:
            self._fabric.loop.in_process(0.0, self.process, self._finish, error)

    def on_process_gone(self) -> None:
        """What the kernel does for a process that died; nothing, where the machine died with it."""
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
        self._connection.forget_if_done()
        if self._protocol is not None:
            self._fabric.loop.in_process(0.0, self.process, self._protocol.connection_lost, error)

    def _check_alive(self) -> None:
        if not self.process.alive:
            raise ProcessGone
