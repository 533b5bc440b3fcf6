"""A client's metadata of the cluster: brokers, topics, leaders; and the Metadata requests that it is read
with. Pure values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from nilometer.identifiers import NO_LEADER, NO_LEADER_EPOCH
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode

# :class:`ClusterMetadata` is immutable; :meth:`ClusterMetadata.merged` returns it updated by a newer Metadata
# response. Invariant: **the leader epoch of a partition never decreases** while its topic id stays the same.
# Brokers learn of a change of leader at different times, and the response of a broker with older metadata
# must not replace a newer leader (KIP-320).


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, in the order given, as requests list them."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics


@dataclass(frozen=True, slots=True)
class BrokerNode:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    partition: int
    leader_id: int
    leader_epoch: int = NO_LEADER_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    """Ordered by partition index, without gaps."""
    is_internal: bool = False
    available: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The indexes of the partitions that have a leader."""

    def __post_init__(self) -> None:
        available = tuple(part.partition for part in self.partitions if part.leader_id != NO_LEADER)
        object.__setattr__(self, "available", available)


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, BrokerNode] = field(default_factory=dict[int, BrokerNode])
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict[str, TopicMetadata])

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of ``topic``; 0 if the topic is unknown."""
        known = self.topics.get(topic)
        return len(known.partitions) if known is not None else 0

    def partition(self, partition: TopicPartition) -> PartitionMetadata | None:
        known = self.topics.get(partition.topic)
        if known is None or not 0 <= partition.partition < len(known.partitions):
            return None
        return known.partitions[partition.partition]

    def leader(self, partition: TopicPartition) -> BrokerNode | None:
        known = self.partition(partition)
        return self.brokers.get(known.leader_id) if known is not None else None

    def leader_epoch(self, partition: TopicPartition) -> int:
        known = self.partition(partition)
        return known.leader_epoch if known is not None else NO_LEADER_EPOCH

    def topic_name(self, topic_id: UUID) -> str | None:
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic.name
        return None

    def merged(self, newer: ClusterMetadata, gone: Iterable[str] = ()) -> ClusterMetadata:
        """Return ``newer``, plus the topics that only this metadata has, except those in ``gone``.

        A partition whose leader epoch is older in ``newer`` keeps its present state.
        """
        topics = dict(self.topics)
        for name in gone:
            topics.pop(name, None)
        for name, topic in newer.topics.items():
            topics[name] = _newest(topics.get(name), topic)
        return replace(newer, topics=topics)

    def with_leader(
        self, partition: TopicPartition, leader_id: int, leader_epoch: int, nodes: Iterable[BrokerNode] = ()
    ) -> ClusterMetadata:
        """Return the metadata with the leader that a Produce or Fetch response named (KIP-951).

        ``nodes`` are the brokers of that response. Returns this same object if the epoch is not newer, or if
        the partition or the leader is unknown.
        """
        known = self.partition(partition)
        if known is None or leader_epoch <= known.leader_epoch:
            return self
        brokers = dict(self.brokers)
        brokers.update((node.node_id, node) for node in nodes)
        if leader_id not in brokers:
            return self
        topic = self.topics[partition.topic]
        parts = list(topic.partitions)
        parts[partition.partition] = replace(known, leader_id=leader_id, leader_epoch=leader_epoch)
        topics = dict(self.topics)
        topics[topic.name] = replace(topic, partitions=tuple(parts))
        return replace(self, brokers=brokers, topics=topics)


def _newest(known: TopicMetadata | None, answer: TopicMetadata) -> TopicMetadata:
    """Return ``answer``, except for partitions whose leader epoch is newer in ``known``: those stay."""
    if known is None or known.topic_id != answer.topic_id:
        return answer
    partitions = list(answer.partitions)
    for index, (old, new) in enumerate(zip(known.partitions, answer.partitions, strict=False)):
        if new.leader_epoch < old.leader_epoch and new.leader_epoch != NO_LEADER_EPOCH:
            partitions[index] = old
    return replace(answer, partitions=tuple(partitions))


# Makes Metadata requests, and turns their responses into the values of ``cluster_metadata``. Pure.


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    metadata: ClusterMetadata
    errors: dict[str, ErrorCode]
    """Topic name (or topic id) to error code, for the topics that were not described."""


def metadata_request(api: Api, topics: Iterable[str] | None, *, create: bool = False) -> Message:
    """Make a Metadata request for ``topics`` (None: all); ``create`` lets the broker create missing ones."""
    named = None
    if topics is not None:
        named = tuple(api.make_request("MetadataRequestTopic", name=name, topic_id=None) for name in topics)
        if not named and api.version == 0:
            named = None  # Version 0 cannot request no topics at all: request all.
    elif api.version == 0:
        named = ()
    return api.request(topics=named, allow_auto_topic_creation=create)


def read_metadata(response: Message) -> MetadataAnswer:
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    for topic in response.topics:
        if topic.error_code != ErrorCode.none:
            errors[topic.name or str(topic.topic_id)] = topic.error_code
        else:
            topics[topic.name] = _topic(topic)
    metadata = ClusterMetadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=getattr(response, "controller_id", -1),
        brokers={
            node.node_id: BrokerNode(node.node_id, node.host, node.port, getattr(node, "rack", None))
            for node in response.brokers
        },
        topics=topics,
    )
    return MetadataAnswer(metadata, errors)


def _topic(topic: Message) -> TopicMetadata:
    # A partition may be missing while its topic is being created: stop before it, so that there is no gap.
    found = {part.partition_index: part for part in topic.partitions}
    partitions: list[PartitionMetadata] = []
    while (part := found.get(len(partitions))) is not None:
        partitions.append(
            PartitionMetadata(
                partition=part.partition_index,
                leader_id=part.leader_id,
                leader_epoch=getattr(part, "leader_epoch", -1),
                replicas=part.replica_nodes,
                in_sync_replicas=part.isr_nodes,
                offline_replicas=getattr(part, "offline_replicas", ()),
            )
        )
    return TopicMetadata(
        name=topic.name,
        topic_id=getattr(topic, "topic_id", None),
        partitions=tuple(partitions),
        is_internal=getattr(topic, "is_internal", False),
    )


def nodes_named(response: Message) -> list[BrokerNode]:
    """Return the addresses of the leaders that a response names (KIP-951)."""
    return [
        BrokerNode(node.node_id, node.host, node.port, node.rack)
        for node in getattr(response, "node_endpoints", ())
    ]
