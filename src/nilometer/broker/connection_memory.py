"""The memory that connections share: for requests that have not been handled, and for responses that no
client has read yet.

A request counts from its first bytes until it has been handled. Together they may take
``queued.max.request.bytes``; once that is used up, connections that hold a part of it are not read on, and
the one that has made no progress for the longest is disconnected.

A client that does not read is sent nothing more, so it holds what was written for it before. Together such
clients may hold ``HELD_BYTES_MAX``. The less of it is left, the fewer records a Fetch response has, and once
it is used up the client that has not read for the longest is disconnected, and large responses are not made,
but for those of origins that hold little: who reads does not wait for those who do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Protocol

UNLIMITED = -1
AHEAD_BYTES_MAX = 32 * 1024 * 1024
"""Of the memory for requests, this much may be taken before the bytes of a request have arrived."""
STALLED_MS = 10_000
"""For so long a request may be arriving, or the next one wait, before its client is disconnected for the sake
of others."""
CHECK_S = 1.0
"""How often that is checked while connections wait for memory."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""For the responses of all connections that are not read."""
UNREAD_BYTES_MIN = 8 * 1024
"""So much each connection may leave unread, however many there are, before it holds memory."""
FETCH_BYTES_MAX = 4 * 1024 * 1024
"""Of records in one response, whatever its client allows; a larger batch comes alone. To read more would hold
the event loop for too long."""
FETCH_BYTES_MIN = 64 * 1024
"""Of records in one response, if that much memory is not left."""
SHARE = 8
"""A response may take this part of the memory that is left."""
ORIGINS = 8
"""One that holds less than this part of the memory goes on when it is used up, until twice as much is."""
MADE_AT_ONCE = 2
"""So many large responses are encoded at once: their sizes are not known before."""
MEMORY_WAIT_S = 0.02
"""So long large responses wait before they look again whether there is memory for them."""
UNREAD_MS = 10_000
"""For so long a client may read nothing before it is disconnected for the sake of others."""


class Sender(Protocol):
    """A connection whose client sends more than is handled at once."""

    def abort(self, reason: str) -> None: ...

    def read_on(self) -> None:
        """Read again: there is memory for more of the request."""
        ...


class RequestMemory:
    """The memory of requests that have not been handled.

    Invariant: ``held`` is the sum of what the senders hold.
    """

    def __init__(self, now_ms: Callable[[], int], bytes_max: int = UNLIMITED) -> None:
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._senders: dict[Sender, tuple[int, int]] = {}
        """The bytes of each and since when (monotonic ms) it has made no progress, the longest time first."""
        self._waiting: dict[Sender, None] = {}
        """The connections that are not read, since there is no memory for what follows."""
        self._check: asyncio.TimerHandle | None = None
        self.held = 0

    def has_room(self, sender: Sender, more: int) -> bool:
        """Whether ``sender`` may hold ``more`` bytes than now. One request is accepted at any size."""
        if self._bytes_max == UNLIMITED or self.held + more <= self._bytes_max:
            return True
        return self.held == self._held_by(sender)

    def has_room_ahead(self, sender: Sender, size: int) -> bool:
        """Whether ``sender`` may hold ``size`` bytes for what it has only announced."""
        return self.held + size <= AHEAD_BYTES_MAX and self.has_room(sender, size)

    def _held_by(self, sender: Sender) -> int:
        return self._senders.get(sender, (0, 0))[0]

    def hold(self, sender: Sender, size: int, *, has_progressed: bool) -> None:
        """Note how many bytes of requests ``sender`` holds now. ``has_progressed``: whether a request has
        begun to arrive, or has been taken up, since the last call."""
        self.held += size - self._held_by(sender)
        if not size or has_progressed:
            known = self._senders.pop(sender, None)
        else:
            known = self._senders.get(sender)
        if size:
            since_ms = self._now_ms() if known is None or has_progressed else known[1]
            self._senders[sender] = size, since_ms
        self._read_on()

    def wait(self, sender: Sender) -> None:
        """Have :meth:`Sender.read_on` called once others hold less."""
        self._waiting[sender] = None
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._end_stalled)

    def release(self, sender: Sender) -> None:
        """Forget ``sender``, whose connection has ended."""
        self._waiting.pop(sender, None)
        self.hold(sender, 0, has_progressed=True)

    def _read_on(self) -> None:
        while self._waiting and self.held < self._bytes_max:
            sender = next(iter(self._waiting))
            del self._waiting[sender]
            sender.read_on()
            if sender in self._waiting:
                break

    def _end_stalled(self) -> None:
        """Disconnect the client that has made no progress for the longest, if others wait for it."""
        self._check = None
        if not self._waiting:
            return
        self._check = asyncio.get_running_loop().call_later(CHECK_S, self._end_stalled)
        sender, (size, since_ms) = next(iter(self._senders.items()))
        stalled_ms = self._now_ms() - since_ms
        if stalled_ms >= STALLED_MS:
            self.release(sender)
            sender.abort(
                f"its requests hold {size} bytes without progress for {stalled_ms} ms, "
                "and the memory for requests (queued.max.request.bytes) is used up"
            )


class Holder(Protocol):
    """A connection whose client does not read, or waits for a large response."""

    @property
    def origin(self) -> Hashable: ...

    def abort(self, reason: str) -> None: ...

    def make_on(self) -> None:
        """Begin to encode the large response that has waited for this, and hold it as one that is not made.
        Without that, another one may begin."""
        ...


class ResponseMemory:
    """The memory of responses that their clients have not read.

    Invariant: ``held`` is the sum of what the holders hold.
    """

    def __init__(self, now_ms: Callable[[], int], bytes_max: int = HELD_BYTES_MAX) -> None:
        self._now_ms = now_ms
        self._bytes_max = bytes_max
        self._holders: dict[Holder, tuple[int, int, Hashable]] = {}
        """By connection, the bytes, since when (monotonic ms), and its origin; the one that has read last is
        last."""
        self._held_by: dict[Hashable, int] = {}
        """The bytes by origin, without those that hold none."""
        self._open: set[Holder] = set()
        self.large_reads = asyncio.Lock()
        """Held while a batch is read that is larger than a response may be, off the event loop."""
        self._making: dict[Holder, None] = {}
        """The connections whose large responses are being encoded."""
        self._to_make: dict[Hashable, dict[Holder, None]] = {}
        """By origin, those whose responses wait for it; origins take turns, the next one is first."""
        self._makes_on: asyncio.Handle | None = None
        self.held = 0

    def is_short_without(self, size: int) -> bool:
        """Return whether it would be used up if ``size`` bytes less were held."""
        return self.held - size > self._bytes_max

    def open(self, holder: Holder) -> int:
        """Note a new connection. Return how many bytes of responses its client may leave unread before it
        holds memory: a part of all, so that thousands of connections do not take far more together."""
        self._open.add(holder)
        return max(UNREAD_BYTES_MIN, self._bytes_max // len(self._open))

    def close(self, holder: Holder) -> None:
        self._open.discard(holder)
        line = self._to_make.get(holder.origin)
        if line is not None and holder in line:
            del line[holder]
            if not line:
                del self._to_make[holder.origin]
        self.release(holder)

    def wait_to_make(self, holder: Holder) -> None:
        """Have :meth:`Holder.make_on` called when another large response may be encoded."""
        self._to_make.setdefault(holder.origin, {})[holder] = None
        if self._makes_on is None:
            self._makes_on = asyncio.get_running_loop().call_soon(self._make_on)

    def _make_on(self) -> None:
        while len(self._making) < MADE_AT_ONCE and (origin := self._next_to_make()) is not None:
            line = self._to_make.pop(origin)
            holder = next(iter(line))
            del line[holder]
            if line:
                self._to_make[origin] = line  # behind the others
            holder.make_on()
        # Memory is there again when a client reads, or has not read for long.
        self._makes_on = (
            asyncio.get_running_loop().call_later(MEMORY_WAIT_S, self._make_on) if self._to_make else None
        )

    def _next_to_make(self) -> Hashable | None:
        """Return the origin whose turn it is; None if all that wait have to wait for memory."""
        is_short = self.is_short()  # which may disconnect some
        for origin in [*self._to_make] if is_short else self._to_make:
            if not is_short or (not self.is_short_for(origin) and origin in self._to_make):
                return origin
        return None

    def hold(self, holder: Holder, size: int, *, is_made: bool = True) -> None:
        """Note that ``size`` bytes wait for the client of ``holder`` now. ``is_made``: whether its response
        is encoded as a whole."""
        if not is_made:
            self._making[holder] = None
        known = self._holders.get(holder)
        if known is None:
            self._holders[holder] = size, self._now_ms(), holder.origin
            self._count(holder.origin, size)
        else:
            before, since_ms, origin = known
            self._holders[holder] = size, since_ms, origin
            self._count(origin, size - before)
        self.is_short()

    def _count(self, origin: Hashable, size: int) -> None:
        self.held += size
        held = self._held_by.get(origin, 0) + size
        if held:
            self._held_by[origin] = held
        else:
            self._held_by.pop(origin, None)

    def release(self, holder: Holder) -> None:
        """Note that the client of ``holder`` reads again, or has gone."""
        if self._making.pop(holder, self) is None and self._makes_on is not None:
            self._makes_on.cancel()
            self._makes_on = asyncio.get_running_loop().call_soon(self._make_on)
        known = self._holders.pop(holder, None)
        if known is not None:
            self._count(known[2], -known[0])

    def is_short(self) -> bool:
        """Return whether it is used up, after clients that have not read for long were disconnected."""
        while self.held > self._bytes_max:
            if not self._end_slowest():
                return True
        return False

    def is_short_for(self, origin: Hashable) -> bool:
        """Return whether what ``origin`` asks for has to wait until clients read."""
        if not self.is_short():
            return False
        share = self._bytes_max // ORIGINS
        return self.held > 2 * self._bytes_max or self._held_by.get(origin, 0) >= share

    def fetch_bytes_max(self) -> int:
        """Return how many bytes of records a response may have now."""
        share = (self._bytes_max - self.held) // SHARE
        if share >= FETCH_BYTES_MAX:
            return FETCH_BYTES_MAX
        return max(FETCH_BYTES_MIN, share)

    def _end_slowest(self) -> bool:
        """Disconnect the client that has not read for the longest; false if it read not long ago."""
        holder, (size, since_ms, _) = next(iter(self._holders.items()))
        waited_ms = self._now_ms() - since_ms
        if waited_ms < UNREAD_MS:
            return False
        self.release(holder)
        holder.abort(f"has not read {size} bytes of responses for {waited_ms} ms, and memory is short")
        return True
