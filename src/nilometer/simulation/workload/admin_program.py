"""A client process that sends requests with an Admin from time to time.

Errors are only counted: the checkers check the results.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter

from nilometer.client.admin.admin import Admin
from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process
from nilometer.wire.errors import KafkaError


class AdminProgram(ABC):
    gap_s: tuple[float, float]
    """Bounds of the random pause between two steps (seconds)."""

    def __init__(self, name: str, host: Host, bootstrap_servers: str) -> None:
        self.name = name
        self.error_counts: Counter[str] = Counter()
        self.process: Process | None = None
        self._host = host
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "client.id": name,
            "request.timeout.ms": 10_000,
            "default.api.timeout.ms": 20_000,
        }
        self._stopping = False

    def start(self) -> Process:
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        self._stopping = True

    async def _main(self, runtime: Runtime) -> None:
        while not self._stopping:
            await asyncio.sleep(runtime.entropy.uniform(*self.gap_s))
            try:
                async with Admin(runtime, self._settings) as admin:
                    await self._step(runtime, admin)
            except KafkaError as error:
                self.error_counts[error.code.name] += 1

    @abstractmethod
    async def _step(self, runtime: Runtime, admin: Admin) -> None:
        """Send the requests of one step. Raises KafkaError."""
