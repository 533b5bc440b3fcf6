"""The brokers' images and their responses to Metadata requests, compared with the metadata log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from nilometer.client.admin.admin import Admin
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.simulation.cluster import Cluster
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode

# Comparing the brokers' images with the metadata log in the store, applied by separate, simple code.
#
# Compared are topics, leaders, ISRs, epochs and replicas. Also, no broker may enter the ISR of a partition
# with a leader while it is not registered, fenced, or in controlled shutdown (KIP-841).

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


# Comparing the brokers' responses to Metadata requests, at rest, with their images.
#
# Clients that follow the hints of Produce and Fetch responses (KIP-951) reach a partition's leader even if
# Metadata names an earlier one, so that no other checker would find it.


class MetadataResponses:
    """Compares the brokers' responses to Metadata requests with their images.

    ``violations``: the differences that :meth:`ask` found.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violations: list[str] = []

    async def ask(self, runtime: Runtime) -> None:
        """Ask every broker for all topics, and for each topic alone. Raises KafkaError, ConnectionLost."""
        async with Admin(runtime, {"bootstrap.servers": self._cluster.bootstrap_servers}) as admin:
            for node in self._cluster.nodes.values():
                image = node.image
                if image is None:
                    continue
                for name in (None, *(topic.name for topic in image.topics())):
                    response = await _ask_at_rest(admin, node.id, image, name)
                    self.violations += differences(response, image, name, node.name)


async def _ask_at_rest(admin: Admin, broker_id: int, image: ClusterImage, name: str | None) -> Message:
    """Ask until the broker has folded no entry meanwhile, so that the response can be compared."""
    while True:
        number = image.number
        response = await admin.client.send_to(broker_id, ApiKey.METADATA, partial(_make, name))
        if image.number == number:
            return response


def _make(name: str | None, api: Api) -> Message:
    topics = None if name is None else (api.make_request("MetadataRequestTopic", name=name),)
    return api.request(topics=topics, allow_auto_topic_creation=False)


def differences(response: Message, image: ClusterImage, name: str | None, who: str) -> list[str]:
    """Return how the response for a topic (None: for all) differs from the image.

    Not compared are leaders: one that seems dead is left out for a short time.
    """
    asked = "all topics" if name is None else name
    wrong: list[str] = []
    expected = {topic.name for topic in image.topics()} if name is None else {name}
    named = {topic.name for topic in response.topics if topic.error_code is ErrorCode.none}
    if named != expected:
        wrong.append(f"metadata: {who}, asked for {asked}, describes {sorted(named)}")
    for described in response.topics:
        topic = image.topic(described.name)
        if topic is None:
            continue  # found above
        states = [(state.leader_epoch, state.isr, state.replicas) for state in topic.partitions]
        found = [
            (part.leader_epoch, tuple(part.isr_nodes), tuple(part.replica_nodes))
            for part in sorted(described.partitions, key=lambda part: part.partition_index)
        ]
        if found != states or described.topic_id != topic.uuid:
            wrong.append(
                f"metadata: {who}, asked for {asked}, says {described.name} has {found}, not {states}"
            )
    return wrong
