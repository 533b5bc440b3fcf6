"""Who decides next at the controller, and whose request is sent on to it next: one after another. Pure but
for asyncio's futures.

What brokers and the controller itself ask for comes first: elections, ISRs, registrations. Clients take
turns: those of different users and addresses, and of one user and address those of different client ids. Who
sends a thousand requests waits for them; others do not.
"""

from __future__ import annotations

import asyncio
from collections import deque
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


_Line = deque[asyncio.Future[None]]


class DecisionQueue:
    """Invariant: while some wait, one has its turn."""

    def __init__(self) -> None:
        self._is_taken = False
        self._first: _Line = deque()
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
        if client is None:
            self._first.append(waiter)
        else:
            lines = self._clients.setdefault((client.principal, client.address), {})
            lines.setdefault(client.client_id, deque()).append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._leave()  # it was its turn already
            raise

    def _leave(self) -> None:
        while (waiter := self._next()) is not None:
            if not waiter.done():  # it was not cancelled
                waiter.set_result(None)
                return
        self._is_taken = False

    def _next(self) -> asyncio.Future[None] | None:
        if self._first:
            return self._first.popleft()
        if not self._clients:
            return None
        origin = next(iter(self._clients))
        lines = self._clients.pop(origin)
        client_id = next(iter(lines))
        line = lines.pop(client_id)
        waiter = line.popleft()
        if line:
            lines[client_id] = line
        if lines:
            self._clients[origin] = lines
        return waiter
