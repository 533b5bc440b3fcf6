"""The broker's HTTP endpoint (``metrics.listener``): ``/metrics``, ``/healthz`` and ``/readyz``.

A broker that is not ready for clients says why.
"""

from __future__ import annotations

from nilometer.broker.assembly import BrokerParts, ControlParts
from nilometer.broker.listening import CannotListen
from nilometer.broker.monitoring import (
    controller_metrics,
    replica_metrics,
    runtime_metrics,
    share_metrics,
    tier_metrics,
)
from nilometer.broker.monitoring.controller_metrics import (
    ControllerMetrics,
    CoordinatorMetrics,
    QuorumMetrics,
)
from nilometer.broker.monitoring.replica_metrics import ReplicaMetrics
from nilometer.broker.monitoring.runtime_metrics import (
    LoopProbe,
    RequestMetrics,
    RuntimeMetrics,
    StorageMetrics,
)
from nilometer.broker.monitoring.share_metrics import ShareMetrics
from nilometer.broker.monitoring.tier_metrics import TierMetrics
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.settings.listeners import METRICS_LISTENER, HttpEndpoint
from nilometer.broker.tasks import Tasks
from nilometer.http.server import HttpServer, Response, plain
from nilometer.identifiers import NO_LEADER, BrokerId
from nilometer.metrics import CONTENT_TYPE, Registry
from nilometer.runtime import Runtime


def why_not_ready(broker_id: int, control: ControlParts) -> str | None:
    """Return why this broker cannot serve its clients: it must be registered and not fenced, and a controller
    must be known. None if it is ready."""
    if control.metadata.blocked is not None:
        return f"fenced: {control.metadata.blocked}"
    if not control.session.is_registered or not control.session.is_live():
        return "this broker is not registered: its session has ended, or has not begun"
    image = control.metadata.image
    own = image.broker(BrokerId(broker_id))
    if own is None or own.fenced:
        return "this broker is fenced"
    controller = image.broker(image.controller_id) if image.controller_id != NO_LEADER else None
    if controller is None or controller.fenced:
        return "no controller is known"
    return None


FAMILIES = (
    *controller_metrics.FAMILIES,
    *replica_metrics.FAMILIES,
    *runtime_metrics.REQUEST_FAMILIES,
    *runtime_metrics.STORAGE_FAMILIES,
    *controller_metrics.COORDINATOR_FAMILIES,
    *share_metrics.FAMILIES,
    *tier_metrics.FAMILIES,
    *controller_metrics.QUORUM_FAMILIES,
    *runtime_metrics.FAMILIES,
)
PARTITION_FAMILIES = replica_metrics.PARTITION_FAMILIES
"""With ``metrics.per.partition.enable`` only."""


def broker_registry(
    config: BrokerConfig, runtime: Runtime, tasks: Tasks, parts: BrokerParts, probe: LoopProbe
) -> Registry:
    registry = Registry()
    cluster = ControllerMetrics(parts.control, runtime.clock)
    replicas = ReplicaMetrics(parts.replication, parts.control.changes, parts.dispatcher.statistics)
    requests = RequestMetrics(
        parts.dispatcher,
        parts.serving.client_quotas,
        [each.name for each in config.listeners],
        runtime.clock,
    )
    own = RuntimeMetrics(runtime, probe, tasks, parts.given.turns, parts.given.directories)
    storage = StorageMetrics(parts.replication.commit, parts.cleaner.report, runtime.clock)
    coordinators = CoordinatorMetrics(parts.coordinators)
    registry.add(controller_metrics.FAMILIES, cluster.collect)
    registry.add(replica_metrics.FAMILIES, replicas.collect)
    registry.add(runtime_metrics.REQUEST_FAMILIES, requests.collect)
    registry.add(runtime_metrics.STORAGE_FAMILIES, storage.collect)
    registry.add(controller_metrics.COORDINATOR_FAMILIES, coordinators.collect)
    registry.add(share_metrics.FAMILIES, ShareMetrics(parts.serving.share_partitions).collect)
    registry.add(tier_metrics.FAMILIES, TierMetrics(parts.remote_logs).collect)
    quorum = QuorumMetrics(parts.given.store, runtime.clock)
    registry.add(controller_metrics.QUORUM_FAMILIES, quorum.collect)
    registry.add(runtime_metrics.FAMILIES, own.collect)
    if config.boolean("metrics.per.partition.enable"):
        registry.add(replica_metrics.PARTITION_FAMILIES, replicas.collect_partitions)
    return registry


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
