"""Makes requests to a group's coordinator and reads its responses, in any API version. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from nilometer.client.network.cluster_metadata import TopicPartition, numbers_by_topic
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, UnsupportedVersion
from nilometer.wire.messages import Api, Message
from nilometer.wire.value_bytes import PROTOCOL_TYPE

NO_GENERATION = -1
NO_MEMBER_ID = ""

COORDINATOR_KEYS_SINCE = 4
"""The first version of FindCoordinator that takes several keys."""
INSTANCE_ID_SINCE = {ApiKey.JOIN_GROUP: 5, ApiKey.SYNC_GROUP: 3, ApiKey.HEARTBEAT: 3, ApiKey.OFFSET_COMMIT: 7}
SEVERAL_LEAVE_SINCE = 3
TOPIC_IDS_SINCE = 10
"""The first version of OffsetCommit and OffsetFetch that names topics only by id."""
SEVERAL_GROUPS_SINCE = 8
REASON_CHARACTERS_MAX = 255

TopicIds = Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """The member that sends a request; the coordinator fences commits and heartbeats by it."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    """The generation id; in the consumer protocol the member epoch."""
    instance_id: str | None = None

    @property
    def is_member(self) -> bool:
        return self.generation != NO_GENERATION


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group and the identity of its member, with which a transaction commits the group's offsets.

    The coordinator rejects offsets of a member that has left or missed a rebalance (KIP-447).
    """

    group_id: str
    identity: MemberIdentity = MemberIdentity()


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the record before ``offset``, if known."""
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """The content of a successful JoinGroup response, which starts a generation."""

    member_id: str
    generation: int
    protocol_name: str
    leader_id: str
    skip_assignment: bool
    members: tuple[tuple[str, str | None, bytes], ...]
    """(member id, instance id, subscription) of all members; empty unless this member is the leader."""

    @property
    def leads(self) -> bool:
        return self.member_id == self.leader_id


# --- the coordinator


class CoordinatorType(enum.IntEnum):
    """What kind of key FindCoordinator is called with (its ``key_type``)."""

    GROUP = 0
    TRANSACTION = 1


def find_coordinator_request(api: Api, keys: Sequence[str], kind: CoordinatorType) -> Message:
    """Make a FindCoordinator request. Raises UnsupportedVersion for several keys in a version for one."""
    if api.version >= COORDINATOR_KEYS_SINCE:
        return api.request(key_type=int(kind), coordinator_keys=tuple(keys))
    if len(keys) != 1:
        raise UnsupportedVersion(ApiKey.FIND_COORDINATOR, COORDINATOR_KEYS_SINCE)
    return api.request(key=keys[0], key_type=int(kind))


def read_coordinators(response: Message) -> list[tuple[ErrorCode, str, int]]:
    """Return for each key the error code, the error message, and the coordinator's broker id, in the order of
    the request."""
    found = response.coordinators if hasattr(response, "coordinators") else (response,)
    return [(one.error_code, getattr(one, "error_message", None) or "", one.node_id) for one in found]


# --- the classic protocol


def join_request(
    api: Api,
    group_id: str,
    identity: MemberIdentity,
    protocols: Sequence[tuple[str, bytes]],
    *,
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    reason: str,
) -> Message:
    return api.request(
        group_id=group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        member_id=identity.member_id,
        group_instance_id=_instance_id(api, identity),
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            api.make_request("JoinGroupRequestProtocol", name=name, metadata=metadata)
            for name, metadata in protocols
        ),
        reason=reason[:REASON_CHARACTERS_MAX],
    )


def read_joined(response: Message) -> Joined:
    return Joined(
        member_id=response.member_id,
        generation=response.generation_id,
        protocol_name=response.protocol_name or "",
        leader_id=response.leader,
        skip_assignment=getattr(response, "skip_assignment", False),
        members=tuple(
            (member.member_id, getattr(member, "group_instance_id", None), member.metadata)
            for member in response.members
        ),
    )


def sync_request(
    api: Api,
    group_id: str,
    identity: MemberIdentity,
    protocol_name: str,
    assignments: Iterable[tuple[str, bytes]],
) -> Message:
    return api.request(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=_instance_id(api, identity),
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=tuple(
            api.make_request("SyncGroupRequestAssignment", member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments
        ),
    )


def heartbeat_request(api: Api, group_id: str, identity: MemberIdentity) -> Message:
    return api.request(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=_instance_id(api, identity),
    )


def leave_request(api: Api, group_id: str, identity: MemberIdentity, reason: str) -> Message:
    if api.version < SEVERAL_LEAVE_SINCE:
        return api.request(group_id=group_id, member_id=identity.member_id)
    member = api.make_request(
        "MemberIdentity",
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        reason=reason[:REASON_CHARACTERS_MAX],
    )
    return api.request(group_id=group_id, members=(member,))


def _instance_id(api: Api, identity: MemberIdentity) -> str | None:
    """Return the instance id. Raises UnsupportedVersion if the API version has no static members."""
    key = ApiKey(api.key)
    if identity.instance_id is not None and api.version < INSTANCE_ID_SINCE[key]:
        raise UnsupportedVersion(key, api.version)
    return identity.instance_id


# --- committed offsets


def commit_request(
    api: Api,
    group_id: str,
    identity: MemberIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    topic_ids: TopicIds,
) -> Message:
    by_topic: dict[str, list[Message]] = {}
    for partition, one in offsets.items():
        part = api.make_request(
            "OffsetCommitRequestPartition",
            partition_index=partition.partition,
            committed_offset=one.offset,
            committed_leader_epoch=one.leader_epoch,
            committed_metadata=one.metadata,
        )
        by_topic.setdefault(partition.topic, []).append(part)
    fields: dict[str, object] = {"retention_time_ms": -1} if api.version <= 4 else {}
    return api.request(
        **fields,
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=_instance_id(api, identity),
        topics=tuple(
            api.make_request(
                "OffsetCommitRequestTopic",
                name=topic,
                topic_id=topic_ids.get(topic),
                partitions=tuple(parts),
            )
            for topic, parts in by_topic.items()
        ),
    )


def read_commit(response: Message, names: Mapping[UUID, str]) -> dict[TopicPartition, ErrorCode]:
    return {
        TopicPartition(name, part.partition_index): part.error_code
        for topic in response.topics
        if (name := _name(topic, names)) is not None
        for part in topic.partitions
    }


def fetch_offsets_request(
    api: Api,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    topic_ids: TopicIds,
    identity: MemberIdentity,
    *,
    require_stable: bool = True,
) -> Message:
    """Make an OffsetFetch request; ``partitions`` None requests all committed offsets of the group."""
    by_topic = None if partitions is None else numbers_by_topic(partitions)
    several = api.version >= SEVERAL_GROUPS_SINCE
    kind = "OffsetFetchRequestTopics" if several else "OffsetFetchRequestTopic"
    topics = None
    if by_topic is not None:
        topics = tuple(
            api.make_request(
                kind, name=topic, topic_id=topic_ids.get(topic), partition_indexes=tuple(numbers)
            )
            for topic, numbers in by_topic.items()
        )
    if not several:
        return api.request(group_id=group_id, topics=topics, require_stable=require_stable)
    group = api.make_request(
        "OffsetFetchRequestGroup",
        group_id=group_id,
        member_id=identity.member_id or None,
        member_epoch=identity.generation,
        topics=topics,
    )
    return api.request(groups=(group,), require_stable=require_stable)


def fetch_all_offsets_request(
    api: Api, group_ids: Sequence[str], partitions: Iterable[TopicPartition] | None = None
) -> Message:
    """Make an OffsetFetch request for all committed offsets of these groups, or those of ``partitions`` of
    one group. Raises UnsupportedVersion for several groups in a version for one."""
    if len(group_ids) == 1:
        return fetch_offsets_request(api, group_ids[0], partitions, {}, MemberIdentity())
    if api.version < SEVERAL_GROUPS_SINCE:
        raise UnsupportedVersion(ApiKey.OFFSET_FETCH, SEVERAL_GROUPS_SINCE)
    groups = (
        api.make_request("OffsetFetchRequestGroup", group_id=group_id, topics=None) for group_id in group_ids
    )
    return api.request(groups=tuple(groups), require_stable=True)


def read_fetched_offsets(
    response: Message, names: Mapping[UUID, str]
) -> tuple[ErrorCode, dict[TopicPartition, tuple[ErrorCode, OffsetAndMetadata | None]]]:
    """Return the group's error code, and per partition its error code and committed offset (None: none).

    ``names`` maps topic ids to names, for versions that name topics by id.
    """
    (group,) = fetched_groups(response)
    return read_offsets_of(group, names)


def fetched_groups(response: Message) -> Sequence[Message]:
    """Return the groups of an OffsetFetch response, in the order of the request."""
    return response.groups if hasattr(response, "groups") else (response,)


def read_offsets_of(
    group: Message, names: Mapping[UUID, str]
) -> tuple[ErrorCode, dict[TopicPartition, tuple[ErrorCode, OffsetAndMetadata | None]]]:
    """Return what :func:`read_fetched_offsets` returns, of one group of a response."""
    found: dict[TopicPartition, tuple[ErrorCode, OffsetAndMetadata | None]] = {}
    for topic in group.topics:
        name = _name(topic, names)
        if name is None:
            continue
        for part in topic.partitions:
            epoch = getattr(part, "committed_leader_epoch", NO_LEADER_EPOCH)
            one = OffsetAndMetadata(part.committed_offset, epoch, part.metadata or "")
            found[TopicPartition(name, part.partition_index)] = (
                part.error_code,
                one if part.committed_offset >= 0 else None,
            )
    return getattr(group, "error_code", ErrorCode.none), found


def _name(topic: Message, names: Mapping[UUID, str]) -> str | None:
    return topic.name if hasattr(topic, "name") else names.get(topic.topic_id)
