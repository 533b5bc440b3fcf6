"""The broker's HTTP endpoint (``metrics.listener``): ``/metrics``, ``/healthz`` and ``/readyz``.

It is opened before the logs are, so that a probe can tell a broker that recovers its logs from a dead one.
``/healthz`` has status 200 as long as the event loop runs; ``/readyz`` has 200 while the broker serves
clients, else 503 with the reason.
"""

from __future__ import annotations

from nilometer.broker.assembly import BrokerParts
from nilometer.broker.listening import CannotListen
from nilometer.broker.monitoring.broker_registry import broker_registry
from nilometer.broker.monitoring.loop_probe import LoopProbe
from nilometer.broker.monitoring.readiness import why_not_ready
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.metrics_listener import METRICS_LISTENER, HttpEndpoint
from nilometer.broker.tasks import Tasks
from nilometer.http.server import HttpServer, Response, plain
from nilometer.metrics import Registry
from nilometer.metrics.families import CONTENT_TYPE
from nilometer.runtime import Runtime


class MonitoringEndpoint:
    def __init__(self, config: BrokerConfig, endpoint: HttpEndpoint, runtime: Runtime, tasks: Tasks) -> None:
        self._config = config
        self._configured = endpoint
        self._runtime = runtime
        self._tasks = tasks
        self._probe = LoopProbe(runtime.clock)
        self._parts: BrokerParts | None = None
        self._registry: Registry | None = None
        self._is_serving = False
        routes = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        self._server = HttpServer(runtime.clock, routes, tasks.spawn)

    @property
    def endpoint(self) -> HttpEndpoint:
        """Where it listens, with the port that the system chose if 0 is configured."""
        return HttpEndpoint(self._configured.host, self._server.port)

    async def open(self) -> None:
        """Listen, and serve from now on. Raises CannotListen."""
        host, port = self._configured.host, self._configured.port
        try:
            await self._server.start(self._runtime.network, host, port)
        except OSError as error:
            raise CannotListen(
                f"cannot listen on {host}:{port}: {error.strerror or error}; stop what uses the port, or "
                f"choose another one with {METRICS_LISTENER}="
            ) from error
        self._tasks.service("measurement of the event loop", self._probe.run())

    def note_parts(self, parts: BrokerParts) -> None:
        """Show the metrics of ``parts`` from now on."""
        self._parts = parts
        self._registry = broker_registry(self._config, self._runtime, self._tasks, parts, self._probe)

    def note_serving(self, is_serving: bool) -> None:
        """Note that clients are served from now on, or no longer: the broker stops."""
        self._is_serving = is_serving

    def close(self) -> None:
        self._server.close()

    def _metrics(self) -> Response:
        if self._registry is None:
            return plain(503, "this broker is starting\n")
        return Response(200, self._registry.text(), CONTENT_TYPE)

    def _healthz(self) -> Response:
        return plain(200, "ok\n")

    def _readyz(self) -> Response:
        reason = self._why_not_ready()
        return plain(200, "ready\n") if reason is None else plain(503, f"{reason}\n")

    def _why_not_ready(self) -> str | None:
        if self._parts is None:
            return "this broker is starting"
        reason = why_not_ready(self._config.node_id, self._parts.control)
        if reason is None and not self._is_serving:
            return "this broker does not serve clients: it is starting, or stopping"
        return reason
