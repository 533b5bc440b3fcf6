"""The records of ``__consumer_offsets``, from which a group coordinator's state is computed.

A record is a key and a value; a value of None is a tombstone. Field names are Kafka's; ``record_format`` has
the binary format. Fields missing in an older version of a value have defaults.
"""

from __future__ import annotations

from typing import TypeAlias
from uuid import UUID

import msgspec

from nilometer.groups.requests import TopicPartitions
from nilometer.groups.streams_topology import Endpoint, KeyValue, TaskIds, Topology


# ── offsets ─────────────────────────────────────────────────────────────────────────────────────
class OffsetCommitKey(msgspec.Struct, frozen=True):
    group: str
    topic: str
    partition: int


class OffsetCommitValue(msgspec.Struct, frozen=True):
    offset: int
    metadata: str
    commit_timestamp: int
    leader_epoch: int = -1
    expire_timestamp: int = -1
    """When the offset expires (ms since the epoch), if the commit had a retention time; -1: by
    ``offsets.retention.minutes``."""
    topic_id: UUID | None = None


# ── classic groups ──────────────────────────────────────────────────────────────────────────────
class GroupMetadataKey(msgspec.Struct, frozen=True):
    group: str


class MemberMetadata(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(msgspec.Struct, frozen=True):
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberMetadata, ...]


# ── consumer groups (KIP-848) ───────────────────────────────────────────────────────────────────
class ConsumerGroupMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class ConsumerGroupMetadataValue(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int = 0


class ConsumerGroupPartitionMetadataKey(msgspec.Struct, frozen=True):
    """Written by Kafka before 4.1; later versions have a hash in the group's metadata record instead. It is
    removed with the group's next epoch."""

    group_id: str


class PartitionRacks(msgspec.Struct, frozen=True):
    partition: int
    racks: tuple[str, ...]


class TopicMetadata(msgspec.Struct, frozen=True):
    topic_id: UUID
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...] = ()


class ConsumerGroupPartitionMetadataValue(msgspec.Struct, frozen=True):
    topics: tuple[TopicMetadata, ...]


class ConsumerGroupMemberMetadataKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ClassicProtocol(msgspec.Struct, frozen=True):
    name: str
    metadata: bytes


class ClassicMemberMetadata(msgspec.Struct, frozen=True):
    session_timeout_ms: int
    supported_protocols: tuple[ClassicProtocol, ...]


class ConsumerGroupMemberMetadataValue(msgspec.Struct, frozen=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMemberMetadata | None = None
    """None unless the member uses the classic protocol."""


class ConsumerGroupTargetAssignmentMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(msgspec.Struct, frozen=True):
    assignment_epoch: int
    assignment_timestamp: int = 0


class ConsumerGroupTargetAssignmentMemberKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(msgspec.Struct, frozen=True):
    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupCurrentMemberAssignmentKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class AssignedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] = ()
    """The member epoch in which each partition was assigned; empty in older records."""


class ConsumerGroupCurrentMemberAssignmentValue(msgspec.Struct, frozen=True):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """0 stable, 1 unrevoked partitions, 2 unreleased partitions."""
    assigned_partitions: tuple[AssignedTopicPartitions, ...]
    partitions_pending_revocation: tuple[AssignedTopicPartitions, ...]


class ConsumerGroupRegularExpressionKey(msgspec.Struct, frozen=True):
    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(msgspec.Struct, frozen=True):
    topics: tuple[str, ...]
    version: int
    timestamp: int


# ── share groups (KIP-932) ──────────────────────────────────────────────────────────────────────
class ShareGroupMemberMetadataKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ShareGroupMemberMetadataValue(msgspec.Struct, frozen=True):
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]


class ShareGroupMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class ShareGroupMetadataValue(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int


class ShareGroupTargetAssignmentMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class ShareGroupTargetAssignmentMetadataValue(msgspec.Struct, frozen=True):
    assignment_epoch: int
    assignment_timestamp: int = 0


class ShareGroupTargetAssignmentMemberKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ShareGroupTargetAssignmentMemberValue(msgspec.Struct, frozen=True):
    topic_partitions: tuple[TopicPartitions, ...]


class ShareGroupCurrentMemberAssignmentKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class ShareGroupCurrentMemberAssignmentValue(msgspec.Struct, frozen=True):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """Always 0, stable: members of a share group revoke nothing."""
    assigned_partitions: tuple[TopicPartitions, ...]


class ShareGroupStatePartitionMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class TopicPartitionsInfo(msgspec.Struct, frozen=True):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class TopicInfo(msgspec.Struct, frozen=True):
    topic_id: UUID
    topic_name: str


class ShareGroupStatePartitionMetadataValue(msgspec.Struct, frozen=True):
    """For which partitions the share coordinator keeps a state of the group."""

    initializing_topics: tuple[TopicPartitionsInfo, ...] = ()
    initialized_topics: tuple[TopicPartitionsInfo, ...] = ()
    deleting_topics: tuple[TopicInfo, ...] = ()


# ── streams groups (KIP-1071) ───────────────────────────────────────────────────────────────────
class StreamsGroupMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class StreamsGroupMetadataValue(msgspec.Struct, frozen=True):
    epoch: int
    metadata_hash: int
    validated_topology_epoch: int = -1
    """The topology's epoch if all its topics are there and fit together; else -1."""
    last_assignment_configs: tuple[KeyValue, ...] = ()
    """The settings with which the target assignment was made."""
    stored_description_topology_epoch: int = -1
    """This and the next belong to a plugin of Kafka: the epochs whose description it has, and rejected."""
    failed_description_topology_epoch: int = -1


class StreamsGroupMemberMetadataKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class StreamsGroupMemberMetadataValue(msgspec.Struct, frozen=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None
    client_tags: tuple[KeyValue, ...]


class StreamsGroupTargetAssignmentMetadataKey(msgspec.Struct, frozen=True):
    group_id: str


class StreamsGroupTargetAssignmentMetadataValue(msgspec.Struct, frozen=True):
    assignment_epoch: int
    assignment_timestamp: int = 0


class StreamsGroupTargetAssignmentMemberKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class StreamsGroupTargetAssignmentMemberValue(msgspec.Struct, frozen=True):
    active_tasks: tuple[TaskIds, ...]
    standby_tasks: tuple[TaskIds, ...]
    warmup_tasks: tuple[TaskIds, ...]


class StreamsGroupCurrentMemberAssignmentKey(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str


class AssignedTaskIds(msgspec.Struct, frozen=True):
    subtopology_id: str
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = None
    """The member epoch in which each task was assigned; of active tasks only."""


class StreamsGroupCurrentMemberAssignmentValue(msgspec.Struct, frozen=True):
    member_epoch: int
    previous_member_epoch: int
    state: int
    """1 stable, 2 unrevoked tasks, 3 unreleased tasks."""
    active_tasks: tuple[AssignedTaskIds, ...]
    standby_tasks: tuple[AssignedTaskIds, ...]
    warmup_tasks: tuple[AssignedTaskIds, ...]
    active_tasks_pending_revocation: tuple[AssignedTaskIds, ...]
    standby_tasks_pending_revocation: tuple[AssignedTaskIds, ...]
    warmup_tasks_pending_revocation: tuple[AssignedTaskIds, ...]


class StreamsGroupTopologyKey(msgspec.Struct, frozen=True):
    """Its value is a :class:`~nilometer.groups.streams_topology.Topology`."""

    group_id: str


RecordKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
    | StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
RecordValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
    | ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
    | StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | Topology
)


class CoordinatorRecord(msgspec.Struct, frozen=True):
    key: RecordKey
    value: RecordValue | None
    """None: a tombstone. Otherwise a value of the type that belongs to the key."""
