"""Serves the metrics of :mod:`.lag_metrics` over HTTP: each scrape reads the cluster.

Scrapes that arrive while the cluster is read share the result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from nilometer.client.admin.admin import Admin
from nilometer.client.settings.client_settings import GivenConfig
from nilometer.exporter.cluster_reading import ClusterReading, ClusterState, Selection
from nilometer.exporter.lag_metrics import registry_of
from nilometer.http.server import HttpServer, Response, plain
from nilometer.metrics.families import CONTENT_TYPE
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

logger = logging.getLogger("nilometer.exporter")

REQUEST_TIMEOUT_MS = 2_000
API_TIMEOUT_MS = 4_000
"""How long a part of a reading may take: below Prometheus' default ``scrape_timeout`` of 10 s in total."""


class Exporter:
    def __init__(self, runtime: Runtime, client: GivenConfig, selection: Selection) -> None:
        """``client`` are the settings of the admin client: ``bootstrap.servers``, and how to connect."""
        self._runtime = runtime
        self._selection = selection
        self._settings: GivenConfig = {
            **client,
            "client.id": "nilometer-exporter",
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "default.api.timeout.ms": API_TIMEOUT_MS,
            "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
        }
        self._reading: asyncio.Task[ClusterState] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        routes = {"/metrics": self._metrics, "/healthz": lambda: plain(200, "ok\n")}
        self._server = HttpServer(runtime.clock, routes, self._spawn)

    async def serve(self, host: str, port: int) -> int:
        """Serve on ``host`` and ``port`` (0 lets the system choose); return the port. Raises OSError."""
        await self._server.start(self._runtime.network, host, port)
        return self._server.port

    async def close(self) -> None:
        self._server.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _metrics(self) -> Response:
        try:
            state = await self._read()
        except KafkaError as error:
            logger.warning("The cluster cannot be read: %s", error)
            return plain(503, f"the cluster cannot be read: {error}\n")
        return Response(200, registry_of(state).text(), CONTENT_TYPE)

    async def _read(self) -> ClusterState:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read_now())
        return await asyncio.shield(self._reading)

    async def _read_now(self) -> ClusterState:
        async with Admin(self._runtime, self._settings) as admin:
            return await ClusterReading(admin, self._selection).read()
