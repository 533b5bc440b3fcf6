"""Clusters for tests: real broker processes on free loopback ports, that leave nothing behind.

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        client = AnyKafkaClient(bootstrap_servers=cluster.bootstrap_servers)
        cluster.kill(cluster.leader("orders"))

``async with Cluster()`` gives an :class:`AsyncCluster` with the same methods as coroutines.
:class:`KafkaContainer` has the methods of testcontainers' class of that name, and needs no Docker. The pytest
plugin provides the fixtures ``nilometer``, ``nilometer_cluster`` and ``nilometer_topic``. docs/testing.md has
examples.

Importing this package imports none of its modules: pytest imports it for its plugin, in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nilometer.testing.cluster import AsyncCluster, Cluster, ClusterError
    from nilometer.testing.faults import CLIENTS, Fault, Faults
    from nilometer.testing.kafka_container import KafkaContainer

__all__ = ["CLIENTS", "AsyncCluster", "Cluster", "ClusterError", "Fault", "Faults", "KafkaContainer"]

_MODULES = {
    "CLIENTS": "nilometer.testing.faults",
    "Fault": "nilometer.testing.faults",
    "Faults": "nilometer.testing.faults",
    "AsyncCluster": "nilometer.testing.cluster",
    "Cluster": "nilometer.testing.cluster",
    "ClusterError": "nilometer.testing.cluster",
    "KafkaContainer": "nilometer.testing.kafka_container",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
