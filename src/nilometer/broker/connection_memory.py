"""The memory that connections share: for the frames of requests that arrive, and for responses that no client
has read yet.

A client that does not read is sent nothing more, so it holds what was written for it before. Together such
clients may hold ``HELD_BYTES_MAX``. The less of it is left, the fewer records a Fetch response has, and once
it is used up the client that has not read for the longest is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RESERVE_BYTES = 32 * 1024 * 1024
"""For the frames of all connections of a listener together."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""For the responses of all connections that are not read."""
FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Of records in one response, whatever its client allows; a larger batch comes alone. To read more would hold
the event loop for too long."""
FETCH_BYTES_MIN = 64 * 1024
"""Of records in one response, if that much memory is not left."""
SHARE = 8
"""A response may take this part of the memory that is left."""
UNREAD_MS = 10_000
"""For so long a client may read nothing before it is disconnected for the sake of others."""


class Reserve:
    """How much memory is left for frames whose bytes have not arrived yet. Shared by a listener's
    connections."""

    __slots__ = ("bytes_left",)

    def __init__(self, bytes_max: int = RESERVE_BYTES) -> None:
        self.bytes_left = bytes_max


class Holder(Protocol):
    """A connection whose client does not read."""

    def abort(self, reason: str) -> None: ...


class ResponseMemory:
    """Invariant: ``held`` is the sum of what the holders hold."""

    def __init__(self, now_ms: Callable[[], int], bytes_max: int = HELD_BYTES_MAX) -> None:
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._holders: dict[Holder, tuple[int, int]] = {}
        """By connection, the bytes and since when (monotonic ms); the one that has read last is last."""
        self.held = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Note that the client of ``holder`` does not read, and that ``size`` bytes wait for it now."""
        known = self._holders.get(holder)
        since_ms = self._now_ms() if known is None else known[1]
        self.held += size - (0 if known is None else known[0])
        self._holders[holder] = size, since_ms
        self.is_short()

    def release(self, holder: Holder) -> None:
        """Note that the client of ``holder`` reads again, or has gone."""
        known = self._holders.pop(holder, None)
        if known is not None:
            self.held -= known[0]

    def is_short(self) -> bool:
        """Return whether it is used up, after clients that have not read for long were disconnected."""
        while self.held > self._bytes_max:
            if not self._end_slowest():
                return True
        return False

    def fetch_bytes_max(self) -> int:
        """Return how many bytes of records a response may have now."""
        return max(FETCH_BYTES_MIN, min(FETCH_BYTES_MAX, (self._bytes_max - self.held) // SHARE))

    def _end_slowest(self) -> bool:
        """Disconnect the client that has not read for the longest; false if it read not long ago."""
        holder, (size, since_ms) = next(iter(self._holders.items()))
        waited_ms = self._now_ms() - since_ms
        if waited_ms < UNREAD_MS:
            return False
        self.release(holder)
        holder.abort(f"has not read {size} bytes of responses for {waited_ms} ms, and memory is short")
        return True
