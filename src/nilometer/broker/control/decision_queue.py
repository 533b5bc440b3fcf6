"""Who decides next at the controller, and whose request is sent on to it next: one after another. Pure but
for asyncio's futures.

What brokers and the controller itself ask for comes first: elections, ISRs, registrations. Clients take
turns: those of different users and addresses, and of one user and address those of different client ids. Who
sends a thousand requests waits for them; others do not.
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


class DecisionQueue:
    """Invariant: while some wait, one has its turn."""

    def __init__(self) -> None:
        self._is_taken = False
        self._first: _Line = {}
        self._clients: dict[tuple[str, str], dict[str | None, _Line]] = {}
        """By principal and address, and by client id; whose turn is next comes first. None is empty."""

    @asynccontextmanager
    async def turn(self, client: Client | None) -> AsyncGenerator[None]:
        """Wait for a turn, and have it for the block. ``client``: None comes first."""
        await self._enter(client)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, client: Client | None) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line(client)[waiter] = None
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._forget(client, waiter)
            else:
                self._leave()  # it was its turn already
            raise

    def _line(self, client: Client | None) -> _Line:
        if client is None:
            return self._first
        lines = self._clients.setdefault((client.principal, client.address), {})
        return lines.setdefault(client.client_id, {})

    def _forget(self, client: Client | None, waiter: asyncio.Future[None]) -> None:
        """Take a waiter out, and what names its client: thousands may leave during one decision."""
        line = self._line(client)
        line.pop(waiter, None)  # its turn may have come and gone
        if client is None or line:
            return
        lines = self._clients[client.principal, client.address]
        del lines[client.client_id]
        if not lines:
            del self._clients[client.principal, client.address]

    def _leave(self) -> None:
        while (waiter := self._next()) is not None:
            if not waiter.done():  # it was not cancelled
                waiter.set_result(None)
                return
        self._is_taken = False

    def _next(self) -> asyncio.Future[None] | None:
        if self._first:
            return _oldest(self._first)
        if not self._clients:
            return None
        origin = next(iter(self._clients))
        lines = self._clients.pop(origin)
        client_id = next(iter(lines))
        line = lines.pop(client_id)
        waiter = _oldest(line)
        if line:
            lines[client_id] = line
        if lines:
            self._clients[origin] = lines
        return waiter


def _oldest(line: _Line) -> asyncio.Future[None]:
    waiter = next(iter(line))
    del line[waiter]
    return waiter
