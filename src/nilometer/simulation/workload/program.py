"""A client process of the workload: it runs on its host until it is asked to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter

from nilometer.runtime import Runtime
from nilometer.simulation.world import Host, Process


class Program(ABC):
    def __init__(self, name: str, host: Host) -> None:
        self.name = name
        self.error_counts: Counter[str] = Counter()
        """The errors of its requests, by code."""
        self.process: Process | None = None
        self._host = host
        self._stopping = False

    def start(self) -> Process:
        """Start it, also again after its process has crashed."""
        self._stopping = False
        self.process = self._host.start(self.name, self._main)
        return self.process

    def stop(self) -> None:
        """Begin nothing more; the process ends once what it has begun has an outcome."""
        self._stopping = True

    @abstractmethod
    async def _main(self, runtime: Runtime) -> None: ...
