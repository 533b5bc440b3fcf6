"""What is not as it should be in a cluster, as sentences for people. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nilometer.client.health.cluster_health import (
    BrokerHealth,
    ClusterHealth,
    PartitionHealth,
    StoppedReplica,
)

T = TypeVar("T")

NAMED_MAX = 10
"""How many partitions of one problem the text names."""


def problems(found: ClusterHealth) -> list[str]:
    """Return what is not as it should be, a sentence each, worst first."""
    total = len(found.partitions)
    lines: list[str] = []
    if found.refused is not None:
        lines.append(f"The brokers refuse this client, and the health is not known: {found.refused}.")
    elif found.controller_id < 0:
        lines.append("No controller responds: nothing in the cluster can be changed.")
    lines += _counted(found.offline, total, "offline (cannot be read or written)", _leader)
    lines += _counted(
        found.under_min_isr, total, "under min.insync.replicas (acks=all is rejected)", _min_isr
    )
    lines += [_missing(one) for one in found.missing]
    lines += [
        f"Log directory {one.path} of broker {one.broker_id} failed: {one.reason}"
        for one in found.failed_directories
    ]
    lines += _stopped(found.stopped)
    lines += _counted(found.under_replicated, total, "under-replicated", _isr)
    lines += [
        f"A transaction of producer {one.producer.producer_id} hangs in {one.partition} from offset "
        f"{one.producer.start_offset}: `nilometer transaction find-hanging` shows how to abort it."
        for one in found.hanging
    ]
    return lines + [f"{one}." for one in found.unknown]


def _missing(one: BrokerHealth) -> str:
    return f"Broker {one.id} is {one.state}: {one.reason or 'the reason is not known'}"


def _counted(
    partitions: Sequence[PartitionHealth], total: int, what: str, detail: Callable[[PartitionHealth], str]
) -> list[str]:
    if not partitions:
        return []
    places = named(partitions, lambda one: f"{one.partition} ({detail(one)})")
    return [f"{len(partitions)} of {total} partitions are {what}: {places}"]


def named(found: Sequence[T], name: Callable[[T], str]) -> str:
    names = ", ".join(map(name, found[:NAMED_MAX]))
    return names if len(found) <= NAMED_MAX else f"{names} and {len(found) - NAMED_MAX} more"


def _leader(one: PartitionHealth) -> str:
    return "no leader" if one.leader < 0 else f"leader {one.leader} does not respond"


def _isr(one: PartitionHealth) -> str:
    return f"ISR {ids(one.isr)} of {ids(one.replicas)}"


def _min_isr(one: PartitionHealth) -> str:
    return f"ISR {ids(one.isr)}, needed {one.needed_in_sync}"


def ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _stopped(found: Sequence[StoppedReplica]) -> list[str]:
    by_cause: dict[tuple[int, str], list[StoppedReplica]] = {}
    for one in found:
        by_cause.setdefault((one.broker_id, one.reason), []).append(one)
    return [
        f"Broker {broker_id} stopped {named(replicas, lambda one: str(one.partition))}: {reason}"
        for (broker_id, reason), replicas in by_cause.items()
    ]
