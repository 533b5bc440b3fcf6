"""Formats a cluster's health: as text for people, and as a JSON document for programs. Pure.

The fields of the document are described in ``docs/operations.md``: fields may be added, none changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nilometer.client.health.cluster_health import (
    BrokerHealth,
    ClusterHealth,
    Grade,
    PartitionHealth,
    StoppedReplica,
)
from nilometer.client.network.cluster_metadata import TopicPartition

T = TypeVar("T")

NAMED_MAX = 10
"""How many partitions of one problem the text names; the JSON document has all."""
_STYLES = {Grade.HEALTHY: "bold green", Grade.DEGRADED: "bold yellow", Grade.UNAVAILABLE: "bold red"}


def problems(found: ClusterHealth) -> list[str]:
    """Return what is not as it should be, a sentence each, worst first."""
    total = len(found.partitions)
    lines: list[str] = []
    if found.controller_id < 0:
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


def picture(found: ClusterHealth) -> RenderableType:
    table = Table("id", "pid", "host", "port", "state")
    for one in found.brokers:
        table.add_row(str(one.id), str(one.pid or ""), one.host, str(one.port), one.state)
    lines = [*problems(found), *_moves(found), *_compactions(found)]
    return Group(_head(found), table, *(Text(line) for line in lines))


def document(found: ClusterHealth) -> dict[str, Any]:
    return {
        "health": found.grade.value,
        "problems": problems(found),
        "cluster_id": found.cluster_id,
        "controller": (
            None if found.controller_id < 0 else {"id": found.controller_id, "epoch": found.controller_epoch}
        ),
        "metadata_number": found.metadata_number,
        "brokers": [_broker_document(one) for one in found.brokers],
        "partitions": {
            "count": len(found.partitions),
            "offline": _partition_documents(found.offline),
            "under_min_isr": _partition_documents(found.under_min_isr),
            "under_replicated": _partition_documents(found.under_replicated),
        },
        "failed_log_directories": [
            {"broker_id": one.broker_id, "path": one.path, "reason": one.reason}
            for one in found.failed_directories
        ],
        "stopped_replicas": [
            {**_place(one.partition), "broker_id": one.broker_id, "reason": one.reason}
            for one in found.stopped
        ],
        "reassignments": [
            {
                **_place(partition),
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
            }
            for partition, move in sorted(found.moves.items())
        ],
        "hanging_transactions": [
            {
                **_place(one.partition),
                "producer_id": one.producer.producer_id,
                "producer_epoch": one.producer.producer_epoch,
                "start_offset": one.producer.start_offset,
                "last_timestamp_ms": one.producer.last_timestamp_ms,
            }
            for one in found.hanging
        ],
        "compactions": [
            {**_place(one.partition), "broker_id": one.broker_id, **asdict(one.state)}
            for one in found.compactions
        ],
        "unknown": list(found.unknown),
    }


# --- text


def _head(found: ClusterHealth) -> Text:
    text = Text(f"Cluster {found.cluster_id or '(id not known)'} is ")
    text.append(found.grade.value, _STYLES[found.grade])
    if found.controller_id >= 0:
        text.append(f"; controller {found.controller_id} in epoch {found.controller_epoch}")
    if found.metadata_number >= 0:
        text.append(f", metadata entry {found.metadata_number}, {len(found.partitions)} partitions")
    return text


def _missing(one: BrokerHealth) -> str:
    return f"Broker {one.id} is {one.state}: {one.reason or 'the reason is not known'}"


def _counted(
    partitions: Sequence[PartitionHealth], total: int, what: str, detail: Callable[[PartitionHealth], str]
) -> list[str]:
    if not partitions:
        return []
    named = _named(partitions, lambda one: f"{one.partition} ({detail(one)})")
    return [f"{len(partitions)} of {total} partitions are {what}: {named}"]


def _named(found: Sequence[T], name: Callable[[T], str]) -> str:
    names = ", ".join(map(name, found[:NAMED_MAX]))
    return names if len(found) <= NAMED_MAX else f"{names} and {len(found) - NAMED_MAX} more"


def _leader(one: PartitionHealth) -> str:
    return "no leader" if one.leader < 0 else f"leader {one.leader} does not respond"


def _isr(one: PartitionHealth) -> str:
    return f"ISR {_ids(one.isr)} of {_ids(one.replicas)}"


def _min_isr(one: PartitionHealth) -> str:
    return f"ISR {_ids(one.isr)}, needed {one.needed_in_sync}"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _stopped(found: Sequence[StoppedReplica]) -> list[str]:
    by_cause: dict[tuple[int, str], list[StoppedReplica]] = {}
    for one in found:
        by_cause.setdefault((one.broker_id, one.reason), []).append(one)
    return [
        f"Broker {broker_id} stopped {_named(replicas, lambda one: str(one.partition))}: {reason}"
        for (broker_id, reason), replicas in by_cause.items()
    ]


def _moves(found: ClusterHealth) -> list[str]:
    if not found.moves:
        return []
    moves = sorted(found.moves.items())
    named = _named(moves, lambda one: f"{one[0]} (adding {_ids(one[1].adding) or 'none'})")
    return [f"{len(moves)} partitions are being reassigned: {named}"]


def _compactions(found: ClusterHealth) -> list[str]:
    current = [one for one in found.compactions if one.state.in_progress]
    if not current:
        return []
    named = _named(
        current, lambda one: f"{one.partition} on broker {one.broker_id} ({one.state.progress:.0%})"
    )
    return [f"{len(current)} logs are being compacted: {named}"]


# --- JSON


def _broker_document(one: BrokerHealth) -> dict[str, Any]:
    reason = {} if one.reason is None else {"reason": one.reason}
    return {"id": one.id, "pid": one.pid, "host": one.host, "port": one.port, "state": one.state, **reason}


def _place(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _partition_documents(found: Sequence[PartitionHealth]) -> list[dict[str, Any]]:
    return [
        {
            **_place(one.partition),
            "leader": one.leader,
            "leader_responds": one.leader_responds,
            "replicas": list(one.replicas),
            "isr": list(one.isr),
            "needed_in_sync": one.needed_in_sync,
        }
        for one in found
    ]
