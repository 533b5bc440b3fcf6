"""Rooms: how much of what requests take goes on at once, and whose turn it is when more has come.

Who has many requests, or large ones, waits for his own: origins, each a principal at an address, have a part
of a room each, and take turns.
"""

from __future__ import annotations

import asyncio
from collections import deque

from nilometer.broker.connection import Origin
from nilometer.broker.connection_memory import ResponseMemory

SHARES = 4
"""Into so many a room is divided: the requests of one origin have one share, or are one."""
ELEMENT_BYTES = 50
"""A request counts as so many bytes for each of its elements, if that is more than its size: the values of a
partition of Fetch or Produce take some 500, of which the request may have six."""
WAIT_S = 0.1
BROKER_ITSELF: Origin = ("", "")
"""The origin of what a broker does for no client, or for many."""


class Room:
    """Limits the bytes of the requests that are handled at the same time; or how many these are, if the size
    of each is 1. Those of one origin have one of ``shares`` parts of it, or are one; for the rest, origins
    take turns."""

    def __init__(self, bytes_max: int, shares: int = SHARES) -> None:
        self._bytes_max = bytes_max
        self._share = bytes_max // shares
        self._bytes_in_work = 0
        self._held: dict[Origin, int] = {}
        """How much of it the requests of an origin take; none is 0."""
        self._waiting: dict[Origin, deque[tuple[asyncio.Future[None], int]]] = {}
        """Of each request that waits, by origin: what ends its wait; its size. Whose turn is next comes
        first, and the oldest request of each. No line is empty."""
        self._growing: dict[Place, None] = {}
        """The requests in work that have grown, the oldest first, which waits for none of the others."""

    async def enter(self, origin: Origin, size: int) -> None:
        """Wait until there is room for a request."""
        if not size:
            return
        if origin not in self._waiting and self._has_share(origin, size) and self._has_room(size):
            self._take(origin, size)
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(origin, deque()).append((ended, size))
        try:
            await ended
        except asyncio.CancelledError:
            if ended.cancelled():
                self._end_waits()  # others may have waited behind it
            else:
                self.leave(origin, size)
            raise

    def leave(self, origin: Origin, size: int) -> None:
        if not size:
            return
        self._bytes_in_work -= size
        self._held[origin] -= size
        if not self._held[origin]:
            del self._held[origin]
        self._end_waits()

    async def grow(self, place: Place, size: int) -> None:
        """Take ``size`` bytes more for a request in work when there is room for them, or when no older one in
        work has grown."""
        self._growing.setdefault(place)
        while not self._may_grow(place, size):  # noqa: ASYNC110  it is not one event that ends it
            await asyncio.sleep(WAIT_S)
        self._take(place.origin, size)
        place.size += size

    def has_left(self, place: Place) -> None:
        self._growing.pop(place, None)
        self.leave(place.origin, place.size)
        place.size = 0

    def _may_grow(self, place: Place, size: int) -> bool:
        if next(iter(self._growing)) is place:
            return True
        is_alone = self._held[place.origin] == place.size
        return self._has_room(size) and (is_alone or self._has_share(place.origin, size))

    def _has_share(self, origin: Origin, size: int) -> bool:
        held = self._held.get(origin, 0)
        return not held or held + size <= self._share

    def _has_room(self, size: int) -> bool:
        return not self._bytes_in_work or self._bytes_in_work + size <= self._bytes_max

    def _take(self, origin: Origin, size: int) -> None:
        self._bytes_in_work += size
        self._held[origin] = self._held.get(origin, 0) + size

    def _end_waits(self) -> None:
        """Let as many go on as there is room for: thousands may wait."""
        while self._end_some():
            pass

    def _end_some(self) -> bool:
        """Let at most one request of each origin go on; return whether one does."""
        has_ended = False
        for origin in tuple(self._waiting):
            line = self._waiting[origin]
            while line and line[0][0].done():  # it was cancelled
                line.popleft()
            if line:
                ended, size = line[0]
                if not self._has_share(origin, size):
                    continue
                if not self._has_room(size):
                    break
                line.popleft()
                self._take(origin, size)
                ended.set_result(None)
                has_ended = True
            del self._waiting[origin]
            if line:
                self._waiting[origin] = line
        return has_ended


class Place:
    """What one request takes of a room. Invariant: ``size`` (bytes) is 0 before it enters, or after it has
    left; a broker's takes nothing."""

    def __init__(self, room: Room, origin: Origin) -> None:
        self._room = room
        self._elements = 0
        self.origin = origin
        self.size = 0

    async def enter(self, size: int, memory: ResponseMemory) -> None:
        """Wait for room, and while clients do not read their responses."""
        await self._room.enter(self.origin, size)
        self.size = size
        try:
            while size and memory.is_short_for(self.origin):  # noqa: ASYNC110  clients read meanwhile
                await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            self.leave()
            raise

    async def grow(self, elements: int) -> None:
        """Count so many further elements; wait if they take more room than there is."""
        self._elements += elements
        more = self._elements * ELEMENT_BYTES - self.size
        if self.size and more > 0:
            await self._room.grow(self, more)

    def leave(self) -> None:
        self._room.has_left(self)
