"""Formats a cluster's health: as text for people, and as a JSON document for programs. Pure.

The fields of the document are described in ``docs/operations.md``: fields may be added, none changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nilometer.client.health.cluster_health import BrokerHealth, ClusterHealth, Grade, PartitionHealth
from nilometer.client.health.health_text import ids, named, problems
from nilometer.client.network.cluster_metadata import TopicPartition

_STYLES = {
    Grade.HEALTHY: "bold green",
    Grade.DEGRADED: "bold yellow",
    Grade.UNAVAILABLE: "bold red",
    Grade.UNKNOWN: "bold yellow",
}

LONG_TURN_US = 10_000
"""No request and no task holds the event loop of a broker for longer, or it is shown."""


def picture(found: ClusterHealth) -> RenderableType:
    table = Table("id", "pid", "host", "port", "state")
    for one in found.brokers:
        table.add_row(str(one.id), str(one.pid or ""), one.host, str(one.port), one.state)
    lines = [*problems(found), *_moves(found), *_compactions(found), *_strays(found), *_turns(found)]
    return Group(_head(found), table, *(Text(line) for line in lines))


def document(found: ClusterHealth) -> dict[str, Any]:
    return {
        "health": found.grade.value,
        "problems": problems(found),
        "cluster_id": found.cluster_id,
        "controller": (
            None
            if found.controller_id < 0
            else {"id": found.controller_id, "epoch": _known(found.controller_epoch)}
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
        "stray_logs": [{"broker_id": one.broker_id, "folders": list(one.folders)} for one in found.strays],
        "longest_turns": [
            {"broker_id": one.broker_id, "cpu_us": one.cpu_us, "work": one.work}
            for one in found.longest_turns
        ],
        "unknown": list(found.unknown),
        "refused": found.refused,
    }


# --- text


def _head(found: ClusterHealth) -> Text:
    text = Text(f"Cluster {found.cluster_id or '(id not known)'} is ")
    grade = "in an unknown state" if found.grade is Grade.UNKNOWN else found.grade.value
    text.append(grade, _STYLES[found.grade])
    if found.controller_id >= 0:
        text.append(f"; controller {found.controller_id}")
    if found.controller_epoch >= 0:
        text.append(f" in epoch {found.controller_epoch}")
    if found.metadata_number >= 0:
        text.append(f", metadata entry {found.metadata_number}, {len(found.partitions)} partitions")
    return text


def _moves(found: ClusterHealth) -> list[str]:
    if not found.moves:
        return []
    moves = sorted(found.moves.items())
    places = named(moves, lambda one: f"{one[0]} (adding {ids(one[1].adding) or 'none'})")
    return [f"{len(moves)} partitions are being reassigned: {places}"]


def _compactions(found: ClusterHealth) -> list[str]:
    current = [one for one in found.compactions if one.state.in_progress]
    if not current:
        return []
    places = named(
        current, lambda one: f"{one.partition} on broker {one.broker_id} ({one.state.progress:.0%})"
    )
    return [f"{len(current)} logs are being compacted: {places}"]


def _strays(found: ClusterHealth) -> list[str]:
    return [
        f"Broker {one.broker_id} keeps {len(one.folders)} stray logs, which are no replicas: "
        f"{named(one.folders, str)} (`nilometer log strays` shows their sizes)"
        for one in found.strays
    ]


def _turns(found: ClusterHealth) -> list[str]:
    return [
        f"The longest turn of the event loop of broker {one.broker_id} took {one.cpu_us / 1000:.0f} ms of "
        f"processor time: {one.work}"
        for one in found.longest_turns
        if one.cpu_us > LONG_TURN_US
    ]


# --- JSON


def _known(number: int) -> int | None:
    return None if number < 0 else number


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
