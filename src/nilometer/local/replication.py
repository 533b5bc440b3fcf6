"""How many replicas the topics of a cluster have by default, by the number of its brokers."""

from __future__ import annotations

REPLICATION_FACTOR_MAX = 3


def replication_settings(brokers: int) -> dict[str, str]:
    """Return broker settings for a cluster of ``brokers``: up to three replicas."""
    replicas = min(REPLICATION_FACTOR_MAX, brokers)
    return {
        "default.replication.factor": str(replicas),
        "offsets.topic.replication.factor": str(replicas),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }
