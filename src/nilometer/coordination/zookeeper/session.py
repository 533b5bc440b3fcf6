"""One broker's session, which is live as long as its lease is valid.

Whether it is live does not follow from the connection's state (a stopped client, and one whose server is
dead, are never notified), but from a *lease*: every T/5 a write that changes nothing goes through the quorum,
and its answer is valid for 0.6 T from the request on. The servers count T from then or later, so the owner
stops first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nilometer.coordination.store import SessionName
from nilometer.runtime import Runtime


class ZooKeeperSession:
    def __init__(
        self, name: SessionName, node: str, runtime: Runtime, lease_ms: int, on_lost: Callable[[], None]
    ) -> None:
        """``node`` exists exactly as long as this session."""
        self._name = name
        self.node = node
        self._clock = runtime.clock
        self.lease_ms = lease_ms
        self._confirmed_ms = runtime.clock.monotonic_ms()
        self._on_lost = on_lost
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def name(self) -> SessionName:
        return self._name

    @property
    def lost(self) -> bool:
        return self._lost.done()

    def is_live(self) -> bool:
        return not self._lost.done() and self._clock.monotonic_ms() - self._confirmed_ms < self.lease_ms

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._lost)

    def confirm(self, asked_ms: int) -> None:
        self._confirmed_ms = asked_ms

    def lose(self, reason: str) -> None:
        if not self._lost.done():
            self._lost.set_result(reason)
            self._on_lost()
