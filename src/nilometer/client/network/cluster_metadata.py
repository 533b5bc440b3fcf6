"""What a client knows of the cluster: brokers, topics, leaders. Pure values and one fold.

:class:`ClusterMetadata` is a picture that never changes; :meth:`ClusterMetadata.merged` folds a newer
answer into it. Invariant: **the leader epoch of a partition never goes back** while its topic id stays
the same. Brokers learn of a change of leader at different times, and an answer from one that is behind
must not undo what a client has already learnt (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

NO_LEADER = -1
NO_EPOCH = -1


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    topic_id: UUID | None
    partitions: tuple[PartitionMetadata, ...]
    """Ordered by number, without gaps."""
    is_internal: bool = False
    available: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The partitions that have a leader."""

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
        """How many partitions ``topic`` has; 0 where it is not known."""
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
        return known.leader_epoch if known is not None else NO_EPOCH

    def topic_name(self, topic_id: UUID) -> str | None:
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic.name
        return None

    def merged(self, newer: ClusterMetadata, gone: Iterable[str] = ()) -> ClusterMetadata:
        """This picture with ``newer`` over it; topics that ``newer`` leaves out stay, but for ``gone``."""
        topics = dict(self.topics)
        for name in gone:
            topics.pop(name, None)
        for name, topic in newer.topics.items():
            topics[name] = _newest(topics.get(name), topic)
        return replace(newer, topics=topics)

    def with_leader(
        self, partition: TopicPartition, leader_id: int, leader_epoch: int, nodes: Iterable[BrokerNode] = ()
    ) -> ClusterMetadata:
        """This picture after a broker named a newer leader in a Produce or Fetch response (KIP-951)."""
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
    """``answer``, but with the known state of each partition whose epoch it would take back."""
    if known is None or known.topic_id != answer.topic_id:
        return answer
    partitions = list(answer.partitions)
    for index, (old, new) in enumerate(zip(known.partitions, answer.partitions, strict=False)):
        if new.leader_epoch < old.leader_epoch and new.leader_epoch != NO_EPOCH:
            partitions[index] = old
    return replace(answer, partitions=tuple(partitions))
