"""Comparing the brokers' images with the metadata log in the store, applied by separate, simple code.

Compared are topics, leaders, ISRs, epochs and replicas. Also, no broker may enter the ISR of a partition with
a leader while it is not registered, fenced, or in controlled shutdown (KIP-841)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from nilometer.cluster.image import ClusterImage
from nilometer.simulation.cluster import Cluster

FIELDS = ("leader", "leader_epoch", "isr", "replicas", "partition_epoch")


@dataclass(slots=True)
class Folded:
    """The state after applying the log. If the store has a snapshot, there is nothing to compare."""

    number: int = -1
    topics: dict[str, str] = field(default_factory=dict[str, str])
    """Topic id → name."""
    partitions: dict[tuple[str, int], dict[str, Any]] = field(
        default_factory=dict[tuple[str, int], dict[str, Any]]
    )
    serving: set[int] = field(default_factory=set[int])
    """The brokers that may enter an ISR."""
    violations: list[str] = field(default_factory=list[str])


def fold(entries: list[tuple[int, bytes]]) -> Folded:
    folded = Folded()
    for number, records in counted_records(entries):
        if number != folded.number + 1:
            folded.violations.append(f"metadata log: entry {number} follows {folded.number}")
        folded.number = number
        for record in records:
            _apply_record(folded, record)
    return folded


def counted_records(entries: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield each entry's number and records: none for an entry of a deposed controller."""
    current = (-1, "", 0)
    for number, body in entries:
        entry = json.loads(body)
        controllership = (entry["controller_id"], entry["controller_incarnation"], entry["controller_epoch"])
        records: list[dict[str, Any]] = entry["records"]
        becomes_controller = any(record["type"] == "TakeOffice" for record in records)  # codespell:ignore
        if becomes_controller and controllership[2] == current[2] + 1:
            current = controllership
        yield number, records if controllership == current else []


def _apply_record(folded: Folded, record: dict[str, Any]) -> None:
    match record["type"]:
        case "BrokerRegistered":
            folded.serving.add(record["broker_id"])
        case "BrokerFenced" | "BrokerInControlledShutdown" | "BrokerUnregistered":
            folded.serving.discard(record["broker_id"])
        case "TopicCreated":
            folded.topics[record["topic_id"]] = record["name"]
        case "TopicDeleted":
            del folded.topics[record["topic_id"]]
            for key in [key for key in folded.partitions if key[0] == record["topic_id"]]:
                del folded.partitions[key]
        case "PartitionCreated":
            replicas = record["replicas"]
            isr = record.get("isr") or replicas
            folded.partitions[record["topic_id"], record["partition"]] = {
                "replicas": replicas,
                "isr": isr,
                "leader": record.get("leader", isr[0]),
                "leader_epoch": record.get("leader_epoch", 0),
                "partition_epoch": record.get("partition_epoch", 0),
            }
        case "PartitionChanged":
            key = record["topic_id"], record["partition"]
            state = folded.partitions[key]
            before = {*state["isr"]}
            state.update({name: record[name] for name in FIELDS if record.get(name) is not None})
            for entering in sorted({*state["isr"]} - before - folded.serving) if state["leader"] >= 0 else ():
                folded.violations.append(
                    f"ineligible: broker {entering} enters the ISR of {folded.topics[key[0]]}-{key[1]} "
                    f"with entry {folded.number} of the metadata log, and does not serve"
                )
        case _:
            pass


def compare(folded: Folded, image: ClusterImage, who: str) -> list[str]:
    """Return the differences of ``image``, which must have applied all entries, to the log."""
    wrong: list[str] = []
    names = sorted(folded.topics.values())
    held = sorted(topic.name for topic in image.topics())
    if names != held:
        wrong.append(f"metadata: the log has topics {names}, {who} has {held}")
    for (topic_id, index), state in folded.partitions.items():
        known = image.partition_by_id(topic_id, index)  # type: ignore[arg-type]
        said = None if known is None else {name: getattr(known, name) for name in FIELDS}
        if said is None or any(_plain(said[name]) != _plain(state[name]) for name in FIELDS):
            wrong.append(f"metadata: {folded.topics[topic_id]}-{index}: the log says {state}, {who} {said}")
    return wrong


def _plain(value: Any) -> Any:
    return list(cast("Sequence[Any]", value)) if isinstance(value, tuple | list) else value


def compare_cluster(cluster: Cluster) -> list[str]:
    """Return the differences between the brokers' images, at rest, and the log in their store."""
    entries = cluster.store.entries()
    if entries is None:
        return []
    folded = fold(entries)
    return folded.violations + [
        violation
        for node in cluster.nodes.values()
        if node.image is not None
        for violation in compare(folded, node.image, node.name)
    ]
