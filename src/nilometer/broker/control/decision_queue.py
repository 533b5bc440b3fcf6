"""Who decides next at the controller, one after another, and whose requests are sent on to it. Pure but for
asyncio's futures.

What brokers and the controller itself ask for comes first: elections, ISRs, registrations. Clients take
turns: those of different users and addresses, and of one user and address those of different client ids. Who
sends a thousand requests waits for them; others do not.

If several have a turn at once, they are of different users or addresses: a request that waits at the
controller, behind others of its client, keeps no other client waiting here. When as many wait there as may
have a turn, they pass it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from nilometer.broker.request_context import RequestContext


class Client(NamedTuple):
    """Who asks for a decision."""

    principal: str
    address: str
    client_id: str | None

    @classmethod
    def of(cls, context: RequestContext, client_id: str | None) -> Client | None:
        """Return the client of a request; None for a broker's own request."""
        if context.is_broker and not context.is_forwarded:
            return None
        return cls(str(context.principal), context.client_address, client_id)


_Line = dict[asyncio.Future[None], None]
"""The oldest first."""


_Origin = tuple[str, str]
"""A client's principal and address."""


class DecisionQueue:
    """Invariant: while some wait that may have a turn, ``at_once`` have theirs, beside those that have passed
    theirs on."""

    def __init__(self, at_once: int = 1, passed_on_max: int = 0) -> None:
        self._free = at_once
        self._passed_on_max = passed_on_max
        self._having: dict[_Origin, None] = {}
        """The clients that have a turn."""
        self._passed_on: dict[_Origin, None] = {}
        """Those of them whose turn goes on, and that keep no other one waiting."""
        self._first: _Line = {}
        self._clients: dict[_Origin, dict[str | None, _Line]] = {}
        """By principal and address, and by client id; whose turn is next comes first. None is empty."""

    @asynccontextmanager
    async def turn(self, client: Client | None) -> AsyncGenerator[None]:
        """Wait for a turn, and have it for the block. ``client``: None comes first."""
        await self._enter(client)
        try:
            yield
        finally:
            self._leave(client)

    def pass_on(self, client: Client | None) -> None:
        """Let another client have a turn beside this one's, which takes long. This one gets no second turn
        meanwhile. No more than ``passed_on_max`` do so."""
        if client is None or len(self._passed_on) >= self._passed_on_max:
            return
        self._passed_on[_origin(client)] = None
        self._free += 1
        self._give_free()

    async def _enter(self, client: Client | None) -> None:
        if self._free and (client is None or _origin(client) not in self._having):
            self._take(client)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line(client)[waiter] = None
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(client, waiter)
            else:
                self._leave(client)  # it was its turn already
            raise

    def _take(self, client: Client | None) -> None:
        self._free -= 1
        if client is not None:
            self._having[_origin(client)] = None

    def _line(self, client: Client | None) -> _Line:
        if client is None:
            return self._first
        lines = self._clients.setdefault(_origin(client), {})
        return lines.setdefault(client.client_id, {})

    def _forget(self, client: Client | None, waiter: asyncio.Future[None]) -> None:
        """Take a waiter out, and what names its client: thousands may leave during one decision."""
        line = self._line(client)
        line.pop(waiter, None)  # its turn may have come and gone
        if client is None or line:
            return
        lines = self._clients[_origin(client)]
        del lines[client.client_id]
        if not lines:
            del self._clients[_origin(client)]

    def _leave(self, client: Client | None) -> None:
        has_passed_on = False
        if client is not None:
            origin = _origin(client)
            del self._having[origin]
            has_passed_on = origin in self._passed_on
            self._passed_on.pop(origin, None)
        self._free += not has_passed_on
        self._give_free()

    def _give_free(self) -> None:
        while self._free and self._give_next():
            pass

    def _give_next(self) -> bool:
        """Give a turn to who is next, unless that one has been cancelled; false if no one may have it."""
        if self._first:
            origin, waiter = None, _oldest(self._first)
        else:
            origin = next((one for one in self._clients if one not in self._having), None)
            if origin is None:
                return False
            waiter = self._next_of(origin)
        if not waiter.done():
            self._free -= 1
            if origin is not None:
                self._having[origin] = None
            waiter.set_result(None)
        return True

    def _next_of(self, origin: _Origin) -> asyncio.Future[None]:
        lines = self._clients.pop(origin)
        client_id = next(iter(lines))
        line = lines.pop(client_id)
        waiter = _oldest(line)
        if line:
            lines[client_id] = line
        if lines:
            self._clients[origin] = lines
        return waiter


def _origin(client: Client) -> _Origin:
    return client.principal, client.address


def _oldest(line: _Line) -> asyncio.Future[None]:
    waiter = next(iter(line))
    del line[waiter]
    return waiter
