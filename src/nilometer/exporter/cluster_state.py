"""What one reading of a cluster found: topics, offsets and groups. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nilometer.client.network.cluster_metadata import BrokerNode, TopicMetadata, TopicPartition


@dataclass(frozen=True, slots=True)
class GroupState:
    members: int
    committed: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Offsets and groups that could not be read are missing; ``failed`` says which part failed, and why."""

    brokers: tuple[BrokerNode, ...]
    topics: Mapping[str, TopicMetadata]
    log_start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    high_watermarks: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    groups: Mapping[str, GroupState] = field(default_factory=dict[str, GroupState])
    failed: Mapping[str, str] = field(default_factory=dict[str, str])

    def lag(self, group: GroupState, partition: TopicPartition) -> int | None:
        """Return how many offsets a group is behind the high watermark; None if that is not known."""
        end, committed = self.high_watermarks.get(partition), group.committed.get(partition)
        return None if end is None or committed is None else max(0, end - committed)
