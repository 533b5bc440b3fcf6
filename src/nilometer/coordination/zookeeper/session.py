"""One broker's session, which is live as long as its lease is valid.

The state of the connection does not show whether a session is live (a paused client, or one whose server is
dead, is not notified). So there is a *lease*: every T/5 (T is the session timeout) a write that changes
nothing goes through the quorum, and its response is valid for 0.6 T from the request on. The servers count T
from the request or later, so the owner stops first.
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
        """``node``: path of an ephemeral node that exists exactly as long as this session."""
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
