"""Requests to a group coordinator and their results, independent of API versions.

Those of members of classic, consumer, share and streams groups, those about committed offsets, and those of
operators. A result with one error for a whole request has it in every error field of its API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, assert_never
from uuid import UUID

import msgspec

from nilometer.coordinators import Producer
from nilometer.groups.streams_topology import (
    ConfiguredSubtopology,
    Endpoint,
    InternalTopic,
    KeyValue,
    Status,
    TaskIds,
    Topology,
)
from nilometer.steps import Listing
from nilometer.wire.errors import ErrorCode

NO_GENERATION = -1
NO_MEMBER_ID = ""


# ── JoinGroup ───────────────────────────────────────────────────────────────────────────────────
class JoinGroupProtocol(msgspec.Struct, frozen=True):
    name: str
    metadata: bytes


MEMBER_BYTES = 1_000
"""About what a member of a group, or an id for one, takes in memory beside what its client chose."""

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""Of the members of a classic group: their metadata for the chosen protocol, and their assignments. They are
one record, which a request of a hundred bytes may write again."""


PROTOCOL_BYTES = 150
"""About what a protocol takes in memory beside its name and metadata."""


def protocol_bytes(name: str, metadata: bytes) -> int:
    return PROTOCOL_BYTES + len(name) + len(metadata)


def metadata_bytes(protocols: Sequence[JoinGroupProtocol], *names: str | None) -> int:
    """Return about how much memory a member takes: its protocols, and the ``names`` that its client chose."""
    held = sum(protocol_bytes(protocol.name, protocol.metadata) for protocol in protocols)
    return MEMBER_BYTES + held + sum(len(name) for name in names if name is not None)


class JoinGroup(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """The protocols that the member supports, in its order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """Version 0 has no rebalance timeout: it is the session timeout then."""
    group_instance_id: str | None = None
    reason: str = ""
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = False
    """Version 4 and later: a member without an id gets one, and must join again with it (KIP-394)."""
    supports_skipping_assignment: bool = False
    """Version 9 and later: the response may instruct the leader to keep the assignment (KIP-814)."""


class JoinGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    member_id: str = NO_MEMBER_ID
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    """None with every error; versions before 7 have the empty string instead."""
    leader: str = NO_MEMBER_ID
    skip_assignment: bool = False
    members: tuple[JoinGroupMember, ...] = ()
    """All members of the group, for the leader; else empty."""


# ── SyncGroup ───────────────────────────────────────────────────────────────────────────────────
class SyncGroupAssignment(msgspec.Struct, frozen=True):
    member_id: str
    assignment: bytes


class SyncGroup(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncGroupAssignment, ...] = ()
    """The assignments of all members, from the leader; else empty."""


class SyncGroupResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


# ── Heartbeat ───────────────────────────────────────────────────────────────────────────────────
class Heartbeat(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode


# ── LeaveGroup ──────────────────────────────────────────────────────────────────────────────────
class LeaveGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroup(msgspec.Struct, frozen=True):
    group_id: str
    members: tuple[LeaveGroupMember, ...]
    """Exactly one in versions 0 to 2."""


class LeaveGroupMemberResult(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveGroupResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    members: tuple[LeaveGroupMemberResult, ...] = ()
    """Versions 0 to 2 have no such field: the only member's error is the response's error."""


# ── ConsumerGroupHeartbeat (KIP-848) ────────────────────────────────────────────────────────────
class TopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID
    partitions: tuple[int, ...]


class ConsumerGroupHeartbeat(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    """None: unchanged. The same holds for the other fields that may be None."""
    subscribed_topic_regex: str | None = None
    server_assignor: str | None = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None
    """The partitions that the member owns."""
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Version 1 and later: the member generates its own id."""
    peer: tuple[str, int] | None = None
    """The client's address and port: they tell its connections apart. None: not known."""


NAME_BYTES = 100
"""About what a name takes in memory beside its characters."""


def subscription_bytes(topics: Iterable[str], *names: str | None) -> int:
    """Return about how much memory a member takes: the names of its topics, and the ``names`` that its client
    chose."""
    held = sum(NAME_BYTES + len(name) for name in topics)
    return MEMBER_BYTES + held + sum(len(name) for name in names if name is not None)


class HeldBytes:
    """How much memory the members of a group take, or the groups of a shard, about: a sum, which is asked for
    by each that joins."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self.total = 0

    def note(self, holder: str, size: int) -> None:
        """Count ``size`` bytes of a member or a group, in place of what was counted of it before."""
        self.total += size - self._of.get(holder, 0)
        self._of[holder] = size

    def forget(self, holder: str) -> None:
        self.total -= self._of.pop(holder, 0)


class ConsumerGroupHeartbeatResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None
    is_repeat: bool = False
    """The assignment is sent only in case the result that had it was lost."""


# ── ConsumerGroupDescribe (KIP-848) ─────────────────────────────────────────────────────────────
class ConsumerGroupDescribe(msgspec.Struct, frozen=True):
    group_ids: tuple[str, ...]


class DescribedTopicPartitions(msgspec.Struct, frozen=True):
    topic_id: UUID
    topic_name: str
    partitions: tuple[int, ...]


class DescribedConsumerGroupMember(msgspec.Struct, frozen=True):
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


class DescribedConsumerGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: Sequence[DescribedConsumerGroupMember] = ()
    """Each is made when it is read, from the group as it was; of its partitions it has those of topics that
    exist then."""


class ConsumerGroupDescribeResult(msgspec.Struct, frozen=True):
    groups: tuple[DescribedConsumerGroup, ...]


# ── ShareGroupHeartbeat (KIP-932) ───────────────────────────────────────────────────────────────
class ShareGroupHeartbeat(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    """Made by the member."""
    member_epoch: int
    """0: the member joins; -1: it leaves."""
    rack_id: str | None = None
    """None: unchanged."""
    subscribed_topic_names: tuple[str, ...] | None = None
    """None: unchanged."""
    client_id: str = ""
    client_host: str = ""


class ShareGroupHeartbeatResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[TopicPartitions, ...] | None = None


# ── ShareGroupDescribe (KIP-932) ────────────────────────────────────────────────────────────────
class ShareGroupDescribe(msgspec.Struct, frozen=True):
    group_ids: tuple[str, ...]


class DescribedShareGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    assignment: tuple[DescribedTopicPartitions, ...]


class DescribedShareGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: Sequence[DescribedShareGroupMember] = ()
    """Each is made when it is read, from the group as it was; of its partitions it has those of topics that
    exist then."""


class ShareGroupDescribeResult(msgspec.Struct, frozen=True):
    groups: tuple[DescribedShareGroup, ...]


# ── Describe-, Alter- and DeleteShareGroupOffsets (KIP-932) ─────────────────────────────────────
class ShareGroupPartitions(msgspec.Struct, frozen=True):
    """Which partitions have a state at the share coordinator."""

    group_id: str


class AlterShareGroupOffsets(msgspec.Struct, frozen=True):
    """Begin the state of partitions again, of a group without members. One that does not exist is created."""

    group_id: str
    topics: Mapping[UUID, Mapping[int, int]]
    """The start offset of each partition. All topics exist."""


class DeleteShareGroupOffsets(msgspec.Struct, frozen=True):
    """Delete the state of all partitions of topics, of a group without members."""

    group_id: str
    topics: frozenset[UUID]


ShareGroupOffsetsRequest: TypeAlias = ShareGroupPartitions | AlterShareGroupOffsets | DeleteShareGroupOffsets


class ShareGroupOffsetsResult(msgspec.Struct, frozen=True):
    """The answer to each of them; without an error of its own, each partition may have one."""

    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    initialized: Mapping[UUID, frozenset[int]] = msgspec.field(default_factory=dict[UUID, frozenset[int]])
    """The partitions with a state, before the request."""
    errors: Mapping[UUID, Mapping[int, ErrorCode]] = msgspec.field(
        default_factory=dict[UUID, Mapping[int, ErrorCode]]
    )


# ── StreamsGroupHeartbeat (KIP-1071) ────────────────────────────────────────────────────────────
class TaskOffset(msgspec.Struct, frozen=True):
    subtopology_id: str
    partition: int
    offset: int


class StreamsGroupHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat of a member of a streams group; None: as in its last one."""

    group_id: str
    member_id: str
    member_epoch: int
    """0: the member joins; -1: it leaves; -2: it leaves and will join again with its instance id."""
    endpoint_information_epoch: int = -1
    """That of the last result that the member got."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    """-1: as in its last heartbeat."""
    topology: Topology | None = None
    """Only while the member joins."""
    active_tasks: tuple[TaskIds, ...] | None = None
    standby_tasks: tuple[TaskIds, ...] | None = None
    warmup_tasks: tuple[TaskIds, ...] | None = None
    process_id: str | None = None
    user_endpoint: Endpoint | None = None
    client_tags: tuple[KeyValue, ...] | None = None
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False
    client_id: str = ""
    client_host: str = ""
    knows_missing_tags: bool = False
    """Version 1 and later: the client knows the status MISSING_CLIENT_TAGS."""


def streams_bytes(request: StreamsGroupHeartbeat) -> int:
    """Return about how much memory the member of this request takes, and its group; 0 if the request says
    nothing that stays."""
    endpoint, names = request.user_endpoint, (request.instance_id, request.rack_id, request.process_id)
    said = (request.topology, endpoint, request.rack_id, request.process_id, request.client_tags)
    if not any((*said, request.task_offsets, request.task_end_offsets)):
        return 0
    tags = [text for tag in request.client_tags or () for text in (tag.key, tag.value)]
    offsets = NAME_BYTES * (len(request.task_offsets or ()) + len(request.task_end_offsets or ()))
    host = "" if endpoint is None else endpoint.host
    held = subscription_bytes(tags, request.member_id, request.client_id, host, *names)
    return held + offsets + (0 if request.topology is None else request.topology.bytes())


class GroupStatus(msgspec.Struct, frozen=True):
    status_code: Status
    status_detail: str


class EndpointPartitions(msgspec.Struct, frozen=True):
    """The partitions of source topics that a member with an endpoint reads, or has the state of."""

    user_endpoint: Endpoint
    active: Mapping[str, tuple[int, ...]]
    """By topic name."""
    standby: Mapping[str, tuple[int, ...]]
    """Those of standby and warm-up tasks."""


class StreamsGroupHeartbeatResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = -1
    task_offset_interval_ms: int = 0
    status: tuple[GroupStatus, ...] = ()
    active_tasks: tuple[TaskIds, ...] | None = None
    standby_tasks: tuple[TaskIds, ...] | None = None
    warmup_tasks: tuple[TaskIds, ...] | None = None
    endpoint_information_epoch: int = 0
    partitions_by_user_endpoint: tuple[EndpointPartitions, ...] | None = None
    missing_topics: tuple[InternalTopic, ...] = ()
    """Internal topics that are to be created, with the rights of the member's client."""


# ── StreamsGroupDescribe (KIP-1071) ─────────────────────────────────────────────────────────────
class StreamsGroupDescribe(msgspec.Struct, frozen=True):
    group_ids: tuple[str, ...]


class StreamsAssignment(msgspec.Struct, frozen=True):
    active_tasks: tuple[TaskIds, ...] = ()
    standby_tasks: tuple[TaskIds, ...] = ()
    warmup_tasks: tuple[TaskIds, ...] = ()


class DescribedStreamsMember(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None
    client_tags: tuple[KeyValue, ...]
    task_offsets: Sequence[TaskOffset]
    task_end_offsets: Sequence[TaskOffset]
    assignment: StreamsAssignment
    target_assignment: StreamsAssignment


class DescribedStreamsGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    topology: Topology | None = None
    configured: Mapping[str, ConfiguredSubtopology] | None = None
    """The subtopologies by id, if all their topics are there; else None."""
    members: Sequence[DescribedStreamsMember] = ()
    """Each is made when it is read, from the group as it was."""
    assignor_name: str | None = None


class StreamsGroupDescribeResult(msgspec.Struct, frozen=True):
    groups: tuple[DescribedStreamsGroup, ...]


# ── OffsetCommit ────────────────────────────────────────────────────────────────────────────────
class OffsetCommitPartition(msgspec.Struct, frozen=True):
    partition_index: int
    committed_offset: int
    committed_leader_epoch: int = -1
    committed_metadata: str | None = None


class OffsetCommitTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetCommitPartition, ...]
    topic_id: UUID | None = None


class OffsetCommit(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetCommitTopic, ...]
    """The topics, all of which exist: names and ids were looked up before."""
    generation_id_or_member_epoch: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    """The retention time of the offsets, which versions 2 to 4 may set; -1: the broker's."""
    knows_member_epochs: bool = True
    """The client knows GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH: version 9 and later of OffsetCommit
    (KIP-848), 6 and later of TxnOffsetCommit (KIP-1319)."""
    producer: Producer | None = None
    """For TxnOffsetCommit: the offsets count once this producer's transaction is committed."""

    @property
    def is_transactional(self) -> bool:
        return self.producer is not None

    @property
    def names_member(self) -> bool:
        return (
            self.generation_id_or_member_epoch >= 0
            or self.member_id != NO_MEMBER_ID
            or self.group_instance_id is not None
        )


class OffsetCommitPartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: ErrorCode


class OffsetCommitTopicResult(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetCommitPartitionResult, ...]
    topic_id: UUID | None = None


class OffsetCommitResult(msgspec.Struct, frozen=True):
    topics: tuple[OffsetCommitTopicResult, ...]
    """The request's topics and partitions in the same order; an error of the whole request is set at each."""


# ── OffsetFetch ─────────────────────────────────────────────────────────────────────────────────
class OffsetFetchTopic(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...]
    topic_id: UUID | None = None
    """Set in versions with topic ids: offsets of an earlier topic of the same name are not returned."""


class OffsetFetch(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None = None
    """None: all topics with committed offsets."""
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False


class OffsetFetchPartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    committed_offset: int = -1
    committed_leader_epoch: int = -1
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.none


class OffsetFetchTopicResult(msgspec.Struct, frozen=True):
    name: str
    partitions: Sequence[OffsetFetchPartitionResult]
    topic_id: UUID | None = None
    """The id in the request; if all topics were requested, the id in the commit, or None."""


class OffsetFetchResult(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    topics: Sequence[OffsetFetchTopicResult] = ()
    """Of a request for all topics, each is made when it is looked at: there may be thousands."""


# ── OffsetDelete ────────────────────────────────────────────────────────────────────────────────
class OffsetDeleteTopic(msgspec.Struct, frozen=True):
    name: str
    partition_indexes: tuple[int, ...]


class OffsetDelete(msgspec.Struct, frozen=True):
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


class OffsetDeletePartitionResult(msgspec.Struct, frozen=True):
    partition_index: int
    error_code: ErrorCode


class OffsetDeleteTopicResult(msgspec.Struct, frozen=True):
    name: str
    partitions: tuple[OffsetDeletePartitionResult, ...]


class OffsetDeleteResult(msgspec.Struct, frozen=True):
    error_code: ErrorCode
    topics: tuple[OffsetDeleteTopicResult, ...] = ()


# ── ListGroups ──────────────────────────────────────────────────────────────────────────────────
class ListGroups(msgspec.Struct, frozen=True):
    states_filter: frozenset[str] = frozenset()
    """The states to list, in lower case; empty: all."""
    types_filter: frozenset[str] = frozenset()
    """The types to list, in lower case; empty: all."""


class ListedGroup(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    group_state: str
    group_type: str
    """``classic``, ``consumer``, ``share`` or ``streams``."""


class ListGroupsResult(msgspec.Struct, frozen=True):
    groups: Listing[ListedGroup] | None = None
    """Each as it is when its step is taken, without those that are deleted by then. What has happened since
    the request need not be committed yet."""
    error_code: ErrorCode = ErrorCode.none


# ── DescribeGroups ──────────────────────────────────────────────────────────────────────────────
class DescribeGroups(msgspec.Struct, frozen=True):
    groups: tuple[str, ...]


class LastRebalance(msgspec.Struct, frozen=True):
    """Why a group rebalanced last, and the member that caused it."""

    reason: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    wall_ms: int
    generation: int
    """The generation before the rebalance."""
    times_in_a_row: int
    """How many rebalances in a row, this one included, the same member has caused."""


class DescribedGroupMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_metadata: bytes
    """The member's metadata for the group's protocol; empty if the group has none."""
    member_assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedGroupMember, ...] = ()
    last_rebalance: LastRebalance | None = None
    """The last rebalance since this coordinator loaded the group; None if there was none."""


class DescribeGroupsResult(msgspec.Struct, frozen=True):
    groups: tuple[DescribedGroup, ...]


# ── DeleteGroups ────────────────────────────────────────────────────────────────────────────────
class DeleteGroups(msgspec.Struct, frozen=True):
    groups_names: tuple[str, ...]


class DeletedGroup(msgspec.Struct, frozen=True):
    group_id: str
    error_code: ErrorCode


class DeleteGroupsResult(msgspec.Struct, frozen=True):
    results: tuple[DeletedGroup, ...]


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
    | ShareGroupHeartbeat
    | ShareGroupDescribe
    | ShareGroupPartitions
    | AlterShareGroupOffsets
    | DeleteShareGroupOffsets
    | StreamsGroupHeartbeat
    | StreamsGroupDescribe
)
GroupResult: TypeAlias = (
    JoinGroupResult
    | SyncGroupResult
    | HeartbeatResult
    | LeaveGroupResult
    | OffsetCommitResult
    | OffsetFetchResult
    | OffsetDeleteResult
    | ListGroupsResult
    | DescribeGroupsResult
    | DeleteGroupsResult
    | ConsumerGroupHeartbeatResult
    | ConsumerGroupDescribeResult
    | ShareGroupHeartbeatResult
    | ShareGroupDescribeResult
    | ShareGroupOffsetsResult
    | StreamsGroupHeartbeatResult
    | StreamsGroupDescribeResult
)


OfOneGroup: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetDelete
    | ConsumerGroupHeartbeat
    | ShareGroupHeartbeat
    | StreamsGroupHeartbeat
)
OF_NAMED_GROUPS = (JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetDelete)
"""The requests that need a group id. Offsets may be committed under the empty id, as old consumers do."""
FOUNDING = (JoinGroup, OffsetCommit, ConsumerGroupHeartbeat, ShareGroupHeartbeat, StreamsGroupHeartbeat)
"""The requests that may create a group."""


def member_bytes(request: GroupRequest) -> int:
    """Return about how much memory the member of this request takes; 0 if it neither joins nor subscribes."""
    if isinstance(request, JoinGroup):
        ids = (request.client_id, request.client_id, request.member_id)
        return metadata_bytes(
            request.protocols,
            *ids,
            request.group_instance_id,
            request.group_instance_id,
            request.protocol_type,
        )
    if isinstance(request, ConsumerGroupHeartbeat) and (
        request.member_epoch == 0 or request.subscribed_topic_names or request.subscribed_topic_regex
    ):
        ids = (request.member_id, request.client_id, request.instance_id, request.rack_id)
        return subscription_bytes(request.subscribed_topic_names or (), *ids, request.subscribed_topic_regex)
    if isinstance(request, ShareGroupHeartbeat) and request.subscribed_topic_names:
        ids = (request.member_id, request.client_id, request.rack_id)
        return subscription_bytes(request.subscribed_topic_names, *ids)
    if isinstance(request, StreamsGroupHeartbeat):
        return streams_bytes(request)
    return 0


def refusal(request: GroupRequest, error_code: ErrorCode, message: str | None = None) -> GroupResult:
    match request:
        case JoinGroup():
            return JoinGroupResult(error_code, request.member_id)
        case SyncGroup():
            return SyncGroupResult(error_code)
        case Heartbeat():
            return HeartbeatResult(error_code)
        case LeaveGroup():
            return LeaveGroupResult(error_code)
        case OffsetCommit():
            return _refused_commit(request, error_code)
        case OffsetFetch():
            return OffsetFetchResult(request.group_id, error_code)
        case OffsetDelete():
            return OffsetDeleteResult(error_code)
        case ListGroups():
            return ListGroupsResult(error_code=error_code)
        case DescribeGroups():
            return DescribeGroupsResult(
                tuple(DescribedGroup(group_id, error_code, message) for group_id in request.groups)
            )
        case DeleteGroups():
            return DeleteGroupsResult(
                tuple(DeletedGroup(group_id, error_code) for group_id in request.groups_names)
            )
        case ConsumerGroupHeartbeat():
            return ConsumerGroupHeartbeatResult(error_code, message)
        case ConsumerGroupDescribe():
            return ConsumerGroupDescribeResult(
                tuple(DescribedConsumerGroup(group_id, error_code, message) for group_id in request.group_ids)
            )
        case ShareGroupHeartbeat():
            return ShareGroupHeartbeatResult(error_code, message)
        case ShareGroupPartitions() | AlterShareGroupOffsets() | DeleteShareGroupOffsets():
            return ShareGroupOffsetsResult(request.group_id, error_code, message)
        case ShareGroupDescribe():
            return ShareGroupDescribeResult(
                tuple(DescribedShareGroup(group_id, error_code, message) for group_id in request.group_ids)
            )
        case StreamsGroupHeartbeat():
            return StreamsGroupHeartbeatResult(error_code, message)
        case StreamsGroupDescribe():
            return StreamsGroupDescribeResult(
                tuple(DescribedStreamsGroup(group_id, error_code, message) for group_id in request.group_ids)
            )
        case _:
            assert_never(request)


def _refused_commit(request: OffsetCommit, error_code: ErrorCode) -> OffsetCommitResult:
    return OffsetCommitResult(
        tuple(
            OffsetCommitTopicResult(
                topic.name,
                tuple(
                    OffsetCommitPartitionResult(partition.partition_index, error_code)
                    for partition in topic.partitions
                ),
                topic.topic_id,
            )
            for topic in request.topics
        )
    )
