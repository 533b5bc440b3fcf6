"""One direction of a connection: the packets in transit from one end to the other.

Its window counts the bytes that the receiver's *protocol* has not read yet, so a reader that pauses (or a
process that is paused) causes ``pause_writing`` at the writer, as TCP does.
"""

from __future__ import annotations

import errno
from collections import deque
from typing import Protocol

from nilometer.simulation.fabric import Fabric
from nilometer.simulation.packet_observer import DirectionObserver

WINDOW_BYTES = 256 * 1024
USER_TIMEOUT_S = 120.0
"""The sender closes a connection on which nothing could be delivered for so long."""

FIN = b"fin"
RST = b"rst"
Packet = tuple[bytes | None, bytes]
"""(sign, data): a FIN or RST sign without data, or None with data."""


class Sender(Protocol):
    def on_room(self) -> None: ...

    def on_lost(self, error: OSError) -> None: ...


class Receiver(Protocol):
    closed: bool

    def on_packet(self, sign: bytes | None, data: bytes) -> None: ...


class Direction:
    """One direction. Invariant: packets arrive in the order in which they were sent."""

    def __init__(self, fabric: Fabric, label: str, source: str, target: str) -> None:
        self._fabric = fabric
        self._label = label
        self._source = source
        self._target = target
        self.sender: Sender
        self.receiver: Receiver
        self.observer: DirectionObserver | None = None
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
        if self.observer is not None and data:
            self.observer.on_sent(data)
        now = self._fabric.loop.time()
        arrival = max(self._last_arrival, now + self._fabric.delay(self._source, self._target, len(data)))
        self._last_arrival = arrival
        self._fabric.loop.in_process(arrival - now, None, self._arrive)

    def drop_all(self) -> None:
        """Drop all packets in transit, because the sending machine lost power."""
        self._clear()

    def _clear(self) -> None:
        self._queue.clear()
        if self.observer is not None:
            self.observer.on_dropped()

    def read(self, size: int) -> None:
        """Record that the receiver read ``size`` bytes, and send the acknowledgement the other way."""
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
            return  # the sending machine lost power
        if self._fabric.is_cut(self._source, self._target):
            self._stuck += 1
            if self._stuck == 1:
                self._stuck_since = self._fabric.loop.time()
                self._fabric.loop.in_process(USER_TIMEOUT_S, None, self._give_up, self._stuck_since)
            return
        sign, data = self._queue.popleft()
        if self.observer is not None and data:
            self.observer.on_arrived(len(data), not self.receiver.closed)
        self._fabric.note("network", f"{self._label} {sign.decode() if sign else len(data)}")
        self.receiver.on_packet(sign, data)

    def _give_up(self, stuck_since: float) -> None:
        if self._stuck and self._stuck_since == stuck_since:
            self._clear()
            self.sender.on_lost(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
