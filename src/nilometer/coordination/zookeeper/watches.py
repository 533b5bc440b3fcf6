"""Watches on the nodes whose changes brokers must notice. A watch that has fired is set again.

Watches have no content. A watch is set again before its change is signalled, so that no change is missed in
between. After a new connection all of them are set again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nilometer.coordination.zookeeper.ensemble import Disconnected, Ensemble

logger = logging.getLogger(__name__)

WATCHED = ("/next", "/snapshot", "/brokers/ids", "/controller")


class Watches:
    def __init__(self, ensemble: Ensemble, retry_s: float, on_change: Callable[[], None]) -> None:
        self._ensemble = ensemble
        self._retry_s = retry_s
        self._on_change = on_change
        self._rearm = asyncio.Event()
        self._due: set[str] = set()

    def set_all(self) -> None:
        """Set all watches, because a new connection has none."""
        for path in WATCHED:
            self._on_fired(path)

    async def run(self) -> None:
        while True:
            await self._rearm.wait()
            self._rearm.clear()
            due, self._due = sorted(self._due), set()
            try:
                await asyncio.gather(*(self._arm(path) for path in due))
            except Disconnected as error:
                logger.info("Watches could not be set: %s. Trying again", error)
                await asyncio.sleep(self._retry_s)
                for path in due:
                    self._on_fired(path)
            self._on_change()

    def _on_fired(self, path: str) -> None:
        self._due.add(path)
        self._rearm.set()

    async def _arm(self, path: str) -> None:
        if path == "/brokers/ids":
            await self._ensemble.children(path, lambda: self._on_fired(path))
        else:
            await self._ensemble.exists(path, lambda: self._on_fired(path))
