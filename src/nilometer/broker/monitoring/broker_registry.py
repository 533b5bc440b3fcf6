"""All metrics of a broker, in the order of a scrape."""

from __future__ import annotations

from nilometer.broker.assembly import BrokerParts
from nilometer.broker.monitoring import (
    controller_metrics,
    coordinator_metrics,
    replica_metrics,
    request_metrics,
    runtime_metrics,
    storage_metrics,
)
from nilometer.broker.monitoring.controller_metrics import ControllerMetrics
from nilometer.broker.monitoring.coordinator_metrics import CoordinatorMetrics
from nilometer.broker.monitoring.loop_probe import LoopProbe
from nilometer.broker.monitoring.replica_metrics import ReplicaMetrics
from nilometer.broker.monitoring.request_metrics import RequestMetrics
from nilometer.broker.monitoring.runtime_metrics import RuntimeMetrics
from nilometer.broker.monitoring.storage_metrics import StorageMetrics
from nilometer.broker.settings.config import BrokerConfig
from nilometer.broker.tasks import Tasks
from nilometer.metrics import Registry
from nilometer.runtime import Runtime

FAMILIES = (
    *controller_metrics.FAMILIES,
    *replica_metrics.FAMILIES,
    *request_metrics.FAMILIES,
    *storage_metrics.FAMILIES,
    *coordinator_metrics.FAMILIES,
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
        parts.services.client_quotas,
        [each.name for each in config.listeners],
        runtime.clock,
    )
    own = RuntimeMetrics(runtime, probe, tasks, parts.services.turns, parts.directories)
    storage = StorageMetrics(parts.replication.commit, parts.cleaner.report, runtime.clock)
    coordinators = CoordinatorMetrics(parts.coordinators)
    registry.add(controller_metrics.FAMILIES, cluster.collect)
    registry.add(replica_metrics.FAMILIES, replicas.collect)
    registry.add(request_metrics.FAMILIES, requests.collect)
    registry.add(storage_metrics.FAMILIES, storage.collect)
    registry.add(coordinator_metrics.FAMILIES, coordinators.collect)
    registry.add(runtime_metrics.FAMILIES, own.collect)
    if config.boolean("metrics.per.partition.enable"):
        registry.add(replica_metrics.PARTITION_FAMILIES, replicas.collect_partitions)
    return registry
