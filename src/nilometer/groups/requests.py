"""Requests to a group coordinator and their replies, free of versions.

Kafka's field names in snake case. What a version could not say has its default here; where a version changes
the *meaning*, the request carries a flag named after that meaning. Batched requests are cut by coordinator
before they come here: one OffsetFetch is one group, a ListGroups is asked of every shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from nilometer.wire.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


# ── JoinGroup ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroup:
    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """In the member's order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The session time-out, in a version (0) that has none of its own."""
    group_instance_id: str | None = None
    reason: str = ""
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = False
    """Version 4 and later: who comes without an id is given one, and comes again (KIP-394)."""
    supports_skipping_assignment: bool = False
    """Version 9 and later (KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinGroupMember:
    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupReply:
    error_code: ErrorCode
    member_id: str = NO_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    """None with every error; versions before 7 say the empty string."""
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()
    """For the leader alone."""


# ── SyncGroup ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroup:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """From the leader alone."""


@dataclass(frozen=True, slots=True)
class SyncGroupReply:
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# ── Heartbeat ───────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class Heartbeat:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    error_code: ErrorCode


# ── LeaveGroup ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class LeaveGroupMember:
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    group_id: str
    members: tuple[LeaveGroupMember, ...]
    """Exactly one in versions 0 to 2."""


@dataclass(frozen=True, slots=True)
class LeaveGroupMemberReply:
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveGroupReply:
    error_code: ErrorCode
    members: tuple[LeaveGroupMemberReply, ...] = ()
    """Versions 0 to 2 have no members: they say the one member's error as their own."""


# ── OffsetCommit ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class OffsetCommitPartition:
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetCommitTopic:
    name: str
    partitions: tuple[OffsetCommitPartition, ...]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    group_id: str
    topics: tuple[OffsetCommitTopic, ...]
    """Of topics that exist: names and ids were looked up before."""
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    """Versions 2 to 4 may ask for a time of their own."""
    knows_member_epochs: bool = True
    """Version 9 and later: understands GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-848)."""


@dataclass(frozen=True, slots=True)
class OffsetCommitPartitionReply:
    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetCommitTopicReply:
    name: str
    partitions: tuple[OffsetCommitPartitionReply, ...]
    topic_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OffsetCommitReply:
    topics: tuple[OffsetCommitTopicReply, ...]
    """The same topics and partitions in the same order; an error of the whole request stands at each."""


# ── OffsetFetch ─────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class OffsetFetchTopic:
    name: str
    partition_indexes: tuple[int, ...]
    topic_id: UUID | None = None
    """In the versions that ask by id: offsets of an earlier topic of the same name are not this topic's."""


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None = None
    """None: whatever the group has committed."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class OffsetFetchPartitionReply:
    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class OffsetFetchTopicReply:
    name: str
    partitions: tuple[OffsetFetchPartitionReply, ...]
    topic_id: UUID | None = None
    """As it was asked; for "whatever is committed", the id the commit came with, or None."""


@dataclass(frozen=True, slots=True)
class OffsetFetchReply:
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    topics: tuple[OffsetFetchTopicReply, ...] = ()


# ── OffsetDelete ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class OffsetDeleteTopic:
    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetDelete:
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeletePartitionReply:
    partition_index: int
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class OffsetDeleteTopicReply:
    name: str
    partitions: tuple[OffsetDeletePartitionReply, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteReply:
    error_code: ErrorCode
    topics: tuple[OffsetDeleteTopicReply, ...] = ()


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ListGroups:
    states_filter: tuple[str, ...] = ()
    """Empty: all. Upper and lower case are the same."""
    types_filter: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
    """``classic`` or ``consumer``."""


@dataclass(frozen=True, slots=True)
class ListGroupsReply:
    groups: tuple[ListedGroup, ...] = ()
    error_code: ErrorCode = ErrorCode.none


# ── DescribeGroups ──────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DescribeGroups:
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LastRebalance:
    """Why a group rebalanced last, and who made it: the culprit, if it keeps doing so."""

    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    wall_ms: int
    generation: int
    """Before the rebalance."""
    times_in_a_row: int
    """How many rebalances, this one included, the same member caused with no other cause between."""


@dataclass(frozen=True, slots=True)
class DescribedGroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    """Empty unless the group has chosen a protocol."""
    member_assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    last_rebalance: LastRebalance | None = None
    """Since this coordinator loaded the group."""


@dataclass(frozen=True, slots=True)
class DescribeGroupsReply:
    groups: tuple[DescribedGroup, ...]


# ── DeleteGroups ────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class DeleteGroups:
    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeletedGroup:
    group_id: str
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class DeleteGroupsReply:
    results: tuple[DeletedGroup, ...]


# ── ConsumerGroupHeartbeat (KIP-848) ────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class TopicPartitions:
    topic_id: UUID
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat:
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    """None: as before. So for the other fields that may be None."""
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    """What the member owns."""
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Version 1 and later: the member makes up its own id."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatReply:
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None


# ── ConsumerGroupDescribe (KIP-848) ─────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribe:
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribedTopicPartitions:
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroupMember:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[DescribedTopicPartitions, ...]
    target_assignment: tuple[DescribedTopicPartitions, ...]
    member_type: int
    """-1 unknown, 0 a member of the classic protocol, 1 of the consumer protocol."""


@dataclass(frozen=True, slots=True)
class DescribedConsumerGroup:
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeReply:
    groups: tuple[DescribedConsumerGroup, ...]


GroupRequest: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | OffsetFetch
    | OffsetDelete
    | ListGroups
    | DescribeGroups
    | DeleteGroups
    | ConsumerGroupHeartbeat
    | ConsumerGroupDescribe
)
Reply: TypeAlias = (
    JoinGroupReply
    | SyncGroupReply
    | HeartbeatReply
    | LeaveGroupReply
    | OffsetCommitReply
    | OffsetFetchReply
    | OffsetDeleteReply
    | ListGroupsReply
    | DescribeGroupsReply
    | DeleteGroupsReply
    | ConsumerGroupHeartbeatReply
    | ConsumerGroupDescribeReply
)
