"""Which modules are compiled: those between the bytes of a request and those of its response."""

from __future__ import annotations

MODULES = (
    "broker.api.dispatcher",
    "broker.api.produce",
    "broker.connection",
    "broker.control.internal_topics",
    "broker.rejected_batches",
    "broker.replicas.delayed_requests",
    "broker.replicas.hosted_partition",
    "broker.replicas.readable_partition",
    "broker.replicas.replica_manager",
    "broker.replicas.traffic",
    "broker.request_statistics",
    "broker.turns",
    "metrics",
    "replication.followers",
    "replication.isr",
    "replication.leader",
    "replication.replica",
    "runtime.system_disk",
    "storage.appending",
    "storage.log",
    "storage.log_state",
    "storage.producers",
    "storage.record_validation",
    "storage.segments.segment",
    "wire.frames",
    "wire.primitives",
    "wire.produce",
    "wire.record_batch",
    "wire.record_heads",
    "wire.records",
)
"""Without the package's name."""
