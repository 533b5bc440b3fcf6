"""The records of ``__consumer_offsets``, from which a group coordinator's state is computed, and Kafka's
binary format of them: all versions are read, Kafka's are written.

A record is a key and a value; a value of None is a tombstone. Field names are Kafka's. Fields missing in an
older version of a value have defaults. A section has the records of one kind of group: keys and values, their
layouts, and the number of each type.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from nilometer.groups import streams_topology as streams
from nilometer.groups.requests import TopicPartitions
from nilometer.groups.streams_topology import Endpoint, KeyValue, TaskIds, Topology
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import (
    BLOB,
    INT8,
    INT16,
    INT16S,
    INT32,
    INT32S,
    INT64,
    NULLABLE_STRING,
    STRING,
    STRINGS,
    UINT16,
    UUID_BYTES,
    Field,
    Layout,
    Reader,
    Writer,
)


class _Type(NamedTuple):
    """A type of record."""

    key: Layout[Any]
    value: Layout[Any]
    versions: int = 1
    """How many versions of the value are read."""
    written: int = 0
    """The version that is written."""
    flexible_since: int = 0


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


_VERSION = 4
_OFFSETS = _Type(
    Layout(OffsetCommitKey, group=STRING, topic=STRING, partition=INT32),
    Layout(
        OffsetCommitValue,
        offset=INT64,
        leader_epoch=INT32.in_versions(3, default=-1),
        metadata=STRING,
        commit_timestamp=INT64,
        expire_timestamp=INT64.in_versions(1, 1, default=-1),
        topic_id=UUID_BYTES.tagged(0, default=None),
    ),
    versions=_VERSION + 1,
    written=_VERSION,
    flexible_since=4,
)
_VERSION_WITH_EXPIRY = 1
"""The only version of an offset commit that has the time when it expires."""


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


_MEMBER = Layout(
    MemberMetadata,
    member_id=STRING,
    group_instance_id=NULLABLE_STRING.in_versions(3, default=None),
    client_id=STRING,
    client_host=STRING,
    rebalance_timeout=INT32.in_versions(1, default=-1),
    session_timeout=INT32,
    subscription=BLOB,
    assignment=BLOB,
)
_CLASSIC_TYPES = {
    2: _Type(
        Layout(GroupMetadataKey, group=STRING),
        Layout(
            GroupMetadataValue,
            protocol_type=STRING,
            generation=INT32,
            protocol=NULLABLE_STRING,
            leader=NULLABLE_STRING,
            current_state_timestamp=INT64.in_versions(2, default=-1),
            members=_MEMBER.array,
        ),
        versions=5,
        written=3,
        flexible_since=4,
    ),
}


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


_EMPTY_CLASSIC = ClassicMemberMetadata(0, ())
_CLASSIC = Layout(
    ClassicMemberMetadata,
    session_timeout_ms=INT32,
    supported_protocols=Layout(ClassicProtocol, name=STRING, metadata=BLOB).array,
)
_PRESENT = 1
"""The first byte of a nullable structure in a tagged field; 0 if it is null."""


def _write_classic(writer: Writer, value: ClassicMemberMetadata | None) -> None:
    writer.int8(0 if value is None else _PRESENT)
    if value is not None:
        _CLASSIC.write(writer, value)


def _read_classic(reader: Reader) -> ClassicMemberMetadata | None:
    return _CLASSIC.read(reader) if reader.int8() == _PRESENT else None


_TOPIC_METADATA = Layout(
    TopicMetadata,
    topic_id=UUID_BYTES,
    topic_name=STRING,
    num_partitions=INT32,
    partition_metadata=Layout(PartitionRacks, partition=INT32, racks=STRINGS).array,
)
_ASSIGNED = Layout(
    AssignedTopicPartitions,
    topic_id=UUID_BYTES,
    partitions=INT32S,
    assignment_epochs=INT32S.tagged(0, default=()),
)
_PARTITIONS = Layout(TopicPartitions, topic_id=UUID_BYTES, partitions=INT32S)
_CONSUMER_TYPES = {
    3: _Type(
        Layout(ConsumerGroupMetadataKey, group_id=STRING),
        Layout(ConsumerGroupMetadataValue, epoch=INT32, metadata_hash=INT64.tagged(0, default=0)),
    ),
    4: _Type(
        Layout(ConsumerGroupPartitionMetadataKey, group_id=STRING),
        Layout(ConsumerGroupPartitionMetadataValue, topics=_TOPIC_METADATA.array),
    ),
    5: _Type(
        Layout(ConsumerGroupMemberMetadataKey, group_id=STRING, member_id=STRING),
        Layout(
            ConsumerGroupMemberMetadataValue,
            instance_id=NULLABLE_STRING,
            rack_id=NULLABLE_STRING,
            client_id=STRING,
            client_host=STRING,
            subscribed_topic_names=STRINGS,
            subscribed_topic_regex=NULLABLE_STRING,
            rebalance_timeout_ms=INT32,
            server_assignor=NULLABLE_STRING,
            classic_member_metadata=Field(_write_classic, _read_classic).tagged(0, default=_EMPTY_CLASSIC),
        ),
    ),
    6: _Type(
        Layout(ConsumerGroupTargetAssignmentMetadataKey, group_id=STRING),
        Layout(
            ConsumerGroupTargetAssignmentMetadataValue,
            assignment_epoch=INT32,
            assignment_timestamp=INT64.tagged(0, default=0),
        ),
    ),
    7: _Type(
        Layout(ConsumerGroupTargetAssignmentMemberKey, group_id=STRING, member_id=STRING),
        Layout(
            ConsumerGroupTargetAssignmentMemberValue,
            topic_partitions=_PARTITIONS.array,
        ),
    ),
    8: _Type(
        Layout(ConsumerGroupCurrentMemberAssignmentKey, group_id=STRING, member_id=STRING),
        Layout(
            ConsumerGroupCurrentMemberAssignmentValue,
            member_epoch=INT32,
            previous_member_epoch=INT32,
            state=INT8,
            assigned_partitions=_ASSIGNED.array,
            partitions_pending_revocation=_ASSIGNED.array,
        ),
    ),
    16: _Type(
        Layout(ConsumerGroupRegularExpressionKey, group_id=STRING, regular_expression=STRING),
        Layout(ConsumerGroupRegularExpressionValue, topics=STRINGS, version=INT64, timestamp=INT64),
    ),
}
ConsumerGroupKey: TypeAlias = (
    ConsumerGroupMetadataKey
    | ConsumerGroupPartitionMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ConsumerGroupValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)


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


_PARTITIONS_INFO = Layout(TopicPartitionsInfo, topic_id=UUID_BYTES, topic_name=STRING, partitions=INT32S)
_SHARE_TYPES = {
    10: _Type(
        Layout(ShareGroupMemberMetadataKey, group_id=STRING, member_id=STRING),
        Layout(
            ShareGroupMemberMetadataValue,
            rack_id=NULLABLE_STRING,
            client_id=STRING,
            client_host=STRING,
            subscribed_topic_names=STRINGS,
        ),
    ),
    11: _Type(
        Layout(ShareGroupMetadataKey, group_id=STRING),
        Layout(ShareGroupMetadataValue, epoch=INT32, metadata_hash=INT64),
    ),
    12: _Type(
        Layout(ShareGroupTargetAssignmentMetadataKey, group_id=STRING),
        Layout(
            ShareGroupTargetAssignmentMetadataValue,
            assignment_epoch=INT32,
            assignment_timestamp=INT64.tagged(0, default=0),
        ),
    ),
    13: _Type(
        Layout(ShareGroupTargetAssignmentMemberKey, group_id=STRING, member_id=STRING),
        Layout(ShareGroupTargetAssignmentMemberValue, topic_partitions=_PARTITIONS.array),
    ),
    14: _Type(
        Layout(ShareGroupCurrentMemberAssignmentKey, group_id=STRING, member_id=STRING),
        Layout(
            ShareGroupCurrentMemberAssignmentValue,
            member_epoch=INT32,
            previous_member_epoch=INT32,
            state=INT8,
            assigned_partitions=_PARTITIONS.array,
        ),
    ),
    15: _Type(
        Layout(ShareGroupStatePartitionMetadataKey, group_id=STRING),
        Layout(
            ShareGroupStatePartitionMetadataValue,
            initializing_topics=_PARTITIONS_INFO.array,
            initialized_topics=_PARTITIONS_INFO.array,
            deleting_topics=Layout(TopicInfo, topic_id=UUID_BYTES, topic_name=STRING).array,
        ),
    ),
}
ShareGroupKey: TypeAlias = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
    | ShareGroupStatePartitionMetadataKey
)
ShareGroupValue: TypeAlias = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
    | ShareGroupStatePartitionMetadataValue
)


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


_KEY_VALUE = Layout(streams.KeyValue, key=STRING, value=STRING)
_KEY_VALUES = _KEY_VALUE.array


def _read_key_values(reader: Reader) -> tuple[streams.KeyValue, ...]:
    """Read an array that may be null, which is as good as an empty one."""
    return reader.nullable_array(lambda: _KEY_VALUE.read(reader)) or ()


_STREAMS_TOPICS = Layout(
    streams.TopicInfo, name=STRING, partitions=INT32, replication_factor=INT16, topic_configs=_KEY_VALUES
).array
_SUBTOPOLOGY = Layout(
    streams.Subtopology,
    subtopology_id=STRING,
    source_topics=STRINGS,
    source_topic_regex=STRINGS,
    state_changelog_topics=_STREAMS_TOPICS,
    repartition_sink_topics=STRINGS,
    repartition_source_topics=_STREAMS_TOPICS,
    copartition_groups=Layout(
        streams.CopartitionGroup,
        source_topics=INT16S,
        source_topic_regex=INT16S,
        repartition_source_topics=INT16S,
    ).array,
)
_TASKS = Layout(streams.TaskIds, subtopology_id=STRING, partitions=INT32S).array
_ASSIGNED_TASKS = Layout(
    AssignedTaskIds,
    subtopology_id=STRING,
    partitions=INT32S,
    assignment_epochs=INT32S.tagged(0, default=None),
).array
_STREAMS_TYPES = {
    17: _Type(
        Layout(StreamsGroupMetadataKey, group_id=STRING),
        Layout(
            StreamsGroupMetadataValue,
            epoch=INT32,
            metadata_hash=INT64,
            validated_topology_epoch=INT32.tagged(0, default=-1),
            last_assignment_configs=Field(_KEY_VALUES.write, _read_key_values).tagged(1, default=()),
            stored_description_topology_epoch=INT32.tagged(2, default=-1),
            failed_description_topology_epoch=INT32.tagged(3, default=-1),
        ),
    ),
    19: _Type(
        Layout(StreamsGroupMemberMetadataKey, group_id=STRING, member_id=STRING),
        Layout(
            StreamsGroupMemberMetadataValue,
            instance_id=NULLABLE_STRING,
            rack_id=NULLABLE_STRING,
            client_id=STRING,
            client_host=STRING,
            rebalance_timeout_ms=INT32,
            topology_epoch=INT32,
            process_id=STRING,
            user_endpoint=Layout(streams.Endpoint, host=STRING, port=UINT16).nullable,
            client_tags=_KEY_VALUES,
        ),
    ),
    20: _Type(
        Layout(StreamsGroupTargetAssignmentMetadataKey, group_id=STRING),
        Layout(
            StreamsGroupTargetAssignmentMetadataValue,
            assignment_epoch=INT32,
            assignment_timestamp=INT64.tagged(0, default=0),
        ),
    ),
    21: _Type(
        Layout(StreamsGroupTargetAssignmentMemberKey, group_id=STRING, member_id=STRING),
        Layout(
            StreamsGroupTargetAssignmentMemberValue,
            active_tasks=_TASKS,
            standby_tasks=_TASKS,
            warmup_tasks=_TASKS,
        ),
    ),
    22: _Type(
        Layout(StreamsGroupCurrentMemberAssignmentKey, group_id=STRING, member_id=STRING),
        Layout(
            StreamsGroupCurrentMemberAssignmentValue,
            member_epoch=INT32,
            previous_member_epoch=INT32,
            state=INT8,
            active_tasks=_ASSIGNED_TASKS,
            standby_tasks=_ASSIGNED_TASKS,
            warmup_tasks=_ASSIGNED_TASKS,
            active_tasks_pending_revocation=_ASSIGNED_TASKS,
            standby_tasks_pending_revocation=_ASSIGNED_TASKS,
            warmup_tasks_pending_revocation=_ASSIGNED_TASKS,
        ),
    ),
    23: _Type(
        Layout(StreamsGroupTopologyKey, group_id=STRING),
        Layout(streams.Topology, epoch=INT32, subtopologies=_SUBTOPOLOGY.array),
    ),
}
StreamsGroupKey: TypeAlias = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
StreamsGroupValue: TypeAlias = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | Topology
)


# ── all records ──────────────────────────────────────────────────────────────────────────────────
RecordKey: TypeAlias = OffsetCommitKey | GroupMetadataKey | ConsumerGroupKey | ShareGroupKey | StreamsGroupKey
RecordValue: TypeAlias = (
    OffsetCommitValue | GroupMetadataValue | ConsumerGroupValue | ShareGroupValue | StreamsGroupValue
)


class CoordinatorRecord(msgspec.Struct, frozen=True):
    key: RecordKey
    value: RecordValue | None
    """None: a tombstone. Otherwise a value of the type that belongs to the key."""


_TYPES = {
    0: _OFFSETS,
    1: _OFFSETS,
    **_CLASSIC_TYPES,
    **_CONSUMER_TYPES,
    **_SHARE_TYPES,
    **_STREAMS_TYPES,
}
"""By the number of the type, with which a key begins."""
_NUMBERS = {record_type.key.make: number for number, record_type in _TYPES.items()}
_BY_VALUE = {record_type.value.make: record_type for record_type in _TYPES.values()}


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return (key, value); a value of None is a tombstone."""
    return encode_key(record.key), None if record.value is None else encode_value(record.value)


def encode_key(key: RecordKey) -> bytes:
    number = _NUMBERS[type(key)]
    writer = Writer(number, flexible=False)
    _TYPES[number].key.write(writer, key)
    return writer.done()


def encode_value(value: RecordValue) -> bytes:
    record_type = _BY_VALUE[type(value)]
    version = record_type.written
    if isinstance(value, OffsetCommitValue) and value.expire_timestamp != -1:
        version = _VERSION_WITH_EXPIRY
    writer = Writer(version, flexible=version >= record_type.flexible_since)
    record_type.value.write(writer, value)
    return writer.done()


_TYPE = b"\x00\x01"
_LENGTH_BYTES = 2
_LENGTH_MAX = 0x7FFF
_VALUE = struct.Struct(">hqiBqB")
"""Version, offset, leader epoch, the length of the metadata plus one, commit timestamp, number of tags."""
_TOPIC_ID_BYTES = 16
_TOPIC_ID_TAG = bytes((0, _TOPIC_ID_BYTES))


@lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> UUID:
    return UUID(bytes=data)


def read_offset_commit(key: bytes, value: bytes) -> CoordinatorRecord | None:
    """Decode an offset commit of version 4 without metadata; None if the record is anything else."""
    if key[:2] != _TYPE or len(value) < _VALUE.size:
        return None
    version, offset, leader_epoch, metadata, timestamp, tags = _VALUE.unpack_from(value)
    if version != _VERSION or metadata != 1:
        return None
    topic_id = None
    rest = value[_VALUE.size :]
    if tags == 1 and rest[:2] == _TOPIC_ID_TAG and len(rest) == 2 + _TOPIC_ID_BYTES:
        topic_id = _topic_id(rest[2:])
    elif tags or rest:
        return None
    found = _read_key(key)
    if found is None:
        return None
    return CoordinatorRecord(found, OffsetCommitValue(offset, "", timestamp, leader_epoch, -1, topic_id))


def _read_key(key: bytes) -> OffsetCommitKey | None:
    group_at = 2 + _LENGTH_BYTES
    group_length = int.from_bytes(key[2:group_at])
    topic_at = group_at + group_length + _LENGTH_BYTES
    topic_length = int.from_bytes(key[topic_at - _LENGTH_BYTES : topic_at])
    end = topic_at + topic_length
    if end + 4 != len(key) or group_length > _LENGTH_MAX or topic_length > _LENGTH_MAX:
        return None
    try:
        group, topic = key[group_at : group_at + group_length].decode(), key[topic_at:end].decode()
    except UnicodeDecodeError:
        return None
    return OffsetCommitKey(group, topic, int.from_bytes(key[end:], signed=True))


def decode_record(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record; None if its type is unknown. Raises MalformedMessage."""
    if value is not None and (found := read_offset_commit(key, value)) is not None:
        return found
    return decode_by_type(key, value)


def decode_by_type(key: bytes, value: bytes | None) -> CoordinatorRecord | None:
    """Decode a record field by field, of any type and version; otherwise as :func:`decode_record`."""
    reader = Reader(key)
    record_type = _TYPES.get(reader.version)
    if record_type is None:
        return None
    decoded_key = record_type.key.read(reader)
    if value is None:
        return CoordinatorRecord(decoded_key, None)
    value_reader = Reader(value)
    if not 0 <= value_reader.version < record_type.versions:
        raise MalformedMessage(f"version {value_reader.version} of the value of {decoded_key}")
    value_reader.flexible = value_reader.version >= record_type.flexible_since
    return CoordinatorRecord(decoded_key, record_type.value.read(value_reader))
