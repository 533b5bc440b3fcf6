"""Kafka's binary format of ``__consumer_offsets`` records: all versions are read, Kafka's are written.

The values of a consumer group's records (KIP-848) are all of version 0, all flexible. An offset commit as it
is usually written is read in a few calls: most records are such.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar, assert_never
from uuid import UUID

import msgspec

from nilometer.groups.records import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionRacks,
    RecordKey,
    RecordValue,
    TopicMetadata,
)
from nilometer.groups.requests import TopicPartitions
from nilometer.wire.errors import MalformedMessage
from nilometer.wire.value_bytes import Reader, Writer, int32s, nested

_TYPE = b"\x00\x01"
_LENGTH_BYTES = 2
_LENGTH_MAX = 0x7FFF
_VALUE = struct.Struct(">hqiBqB")
"""Version, offset, leader epoch, the length of the metadata plus one, commit timestamp, number of tags."""
_VERSION = 4
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


ConsumerValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupPartitionMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
_FIRST_TAG = 0
"""No value has more than one tagged field. A default is not written."""
_PRESENT = 1
"""The first byte of a nullable structure in a tagged field, if it is not null."""
_NULL = b"\x00"
_EMPTY_CLASSIC = ClassicMemberMetadata(0, ())


def encode_consumer_value(value: ConsumerValue) -> bytes:
    writer = Writer(0, flexible=True)
    match value:
        case ConsumerGroupMetadataValue():
            writer.int32(value.epoch)
            _end_with_int64(writer, value.metadata_hash)
        case ConsumerGroupPartitionMetadataValue():
            _write_partition_metadata(writer, value)
        case ConsumerGroupMemberMetadataValue():
            _write_member(writer, value)
        case ConsumerGroupTargetAssignmentMetadataValue():
            writer.int32(value.assignment_epoch)
            _end_with_int64(writer, value.assignment_timestamp)
        case ConsumerGroupTargetAssignmentMemberValue():
            writer.array(value.topic_partitions, lambda topic: _write_partitions(writer, topic))
            writer.tags()
        case ConsumerGroupCurrentMemberAssignmentValue():
            writer.int32(value.member_epoch)
            writer.int32(value.previous_member_epoch)
            writer.int8(value.state)
            for topics in (value.assigned_partitions, value.partitions_pending_revocation):
                writer.array(topics, lambda topic: _write_assigned(writer, topic))
            writer.tags()
        case ConsumerGroupRegularExpressionValue():
            writer.strings(value.topics)
            writer.int64(value.version)
            writer.int64(value.timestamp)
            writer.tags()
        case _:
            assert_never(value)
    return writer.done()


def _end_with_int64(writer: Writer, value: int) -> None:
    writer.tags(*([(_FIRST_TAG, nested(lambda field: field.int64(value)))] if value else []))


def _write_partitions(writer: Writer, topic: TopicPartitions) -> None:
    writer.uuid(topic.topic_id)
    writer.int32s(topic.partitions)
    writer.tags()


def _write_assigned(writer: Writer, topic: AssignedTopicPartitions) -> None:
    writer.uuid(topic.topic_id)
    writer.int32s(topic.partitions)
    writer.tags(*([(_FIRST_TAG, int32s(topic.assignment_epochs))] if topic.assignment_epochs else []))


def _write_partition_metadata(writer: Writer, value: ConsumerGroupPartitionMetadataValue) -> None:
    def write_racks(partition: PartitionRacks) -> None:
        writer.int32(partition.partition)
        writer.strings(partition.racks)
        writer.tags()

    def write_topic(topic: TopicMetadata) -> None:
        writer.uuid(topic.topic_id)
        writer.string(topic.topic_name)
        writer.int32(topic.num_partitions)
        writer.array(topic.partition_metadata, write_racks)
        writer.tags()

    writer.array(value.topics, write_topic)
    writer.tags()


def _write_member(writer: Writer, value: ConsumerGroupMemberMetadataValue) -> None:
    writer.string(value.instance_id)
    writer.string(value.rack_id)
    writer.string(value.client_id)
    writer.string(value.client_host)
    writer.strings(value.subscribed_topic_names)
    writer.string(value.subscribed_topic_regex)
    writer.int32(value.rebalance_timeout_ms)
    writer.string(value.server_assignor)
    classic = value.classic_member_metadata
    # The default is not null but an empty structure: null is written, the empty structure left out.
    if classic is None:
        writer.tags((_FIRST_TAG, _NULL))
    elif classic == _EMPTY_CLASSIC:
        writer.tags()
    else:
        writer.tags((_FIRST_TAG, nested(lambda field: _write_classic(field, classic))))


def _write_classic(writer: Writer, value: ClassicMemberMetadata) -> None:
    def write_protocol(protocol: ClassicProtocol) -> None:
        writer.string(protocol.name)
        writer.blob(protocol.metadata)
        writer.tags()

    writer.int8(_PRESENT)
    writer.int32(value.session_timeout_ms)
    writer.array(value.supported_protocols, write_protocol)
    writer.tags()


# ── reading ─────────────────────────────────────────────────────────────────────────────────────
def read_metadata(reader: Reader) -> ConsumerGroupMetadataValue:
    return ConsumerGroupMetadataValue(reader.int32(), _int64_at_the_end(reader))


def read_target_metadata(reader: Reader) -> ConsumerGroupTargetAssignmentMetadataValue:
    return ConsumerGroupTargetAssignmentMetadataValue(reader.int32(), _int64_at_the_end(reader))


def _int64_at_the_end(reader: Reader) -> int:
    field = reader.tags().get(_FIRST_TAG)
    return 0 if field is None else field.int64()


def read_partition_metadata(reader: Reader) -> ConsumerGroupPartitionMetadataValue:
    def read_racks() -> PartitionRacks:
        racks = PartitionRacks(reader.int32(), reader.strings())
        reader.tags()
        return racks

    def read_topic() -> TopicMetadata:
        topic = TopicMetadata(reader.uuid(), reader.string(), reader.int32(), reader.array(read_racks))
        reader.tags()
        return topic

    value = ConsumerGroupPartitionMetadataValue(reader.array(read_topic))
    reader.tags()
    return value


def read_member(reader: Reader) -> ConsumerGroupMemberMetadataValue:
    instance_id = reader.nullable_string()
    rack_id = reader.nullable_string()
    client_id = reader.string()
    client_host = reader.string()
    topics = reader.strings()
    regex = reader.nullable_string()
    rebalance_timeout_ms = reader.int32()
    server_assignor = reader.nullable_string()
    classic = reader.tags().get(_FIRST_TAG)
    return ConsumerGroupMemberMetadataValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        topics,
        regex,
        rebalance_timeout_ms,
        server_assignor,
        _EMPTY_CLASSIC if classic is None else _read_classic(classic),
    )


def _read_classic(reader: Reader) -> ClassicMemberMetadata | None:
    def read_protocol() -> ClassicProtocol:
        protocol = ClassicProtocol(reader.string(), reader.blob())
        reader.tags()
        return protocol

    if reader.int8() != _PRESENT:
        return None
    value = ClassicMemberMetadata(reader.int32(), reader.array(read_protocol))
    reader.tags()
    return value


def read_target_member(reader: Reader) -> ConsumerGroupTargetAssignmentMemberValue:
    def read_topic() -> TopicPartitions:
        topic = TopicPartitions(reader.uuid(), reader.int32s())
        reader.tags()
        return topic

    value = ConsumerGroupTargetAssignmentMemberValue(reader.array(read_topic))
    reader.tags()
    return value


def read_current_assignment(reader: Reader) -> ConsumerGroupCurrentMemberAssignmentValue:
    def read_topic() -> AssignedTopicPartitions:
        topic_id = reader.uuid()
        partitions = reader.int32s()
        epochs = reader.tags().get(_FIRST_TAG)
        return AssignedTopicPartitions(topic_id, partitions, () if epochs is None else epochs.int32s())

    value = ConsumerGroupCurrentMemberAssignmentValue(
        reader.int32(),
        reader.int32(),
        reader.int8(),
        reader.array(read_topic),
        reader.array(read_topic),
    )
    reader.tags()
    return value


def read_regular_expression(reader: Reader) -> ConsumerGroupRegularExpressionValue:
    value = ConsumerGroupRegularExpressionValue(reader.strings(), reader.int64(), reader.int64())
    reader.tags()
    return value


LEGACY_OFFSET_COMMIT = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
CONSUMER_GROUP_METADATA = 3
CONSUMER_GROUP_PARTITION_METADATA = 4
CONSUMER_GROUP_MEMBER_METADATA = 5
CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA = 6
CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER = 7
CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT = 8
CONSUMER_GROUP_REGULAR_EXPRESSION = 16

_OFFSET_VERSION = 4
_OFFSET_VERSION_WITH_EXPIRY = 1
_GROUP_VERSION = 3
_FLEXIBLE_SINCE = 4
_HIGHEST_VERSION = 4
_TAG_TOPIC_ID = 0


# ── writing ─────────────────────────────────────────────────────────────────────────────────────
def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """Return (key, value); a value of None is a tombstone."""
    return encode_key(record.key), None if record.value is None else encode_value(record.value)


def encode_key(key: RecordKey) -> bytes:
    match key:
        case OffsetCommitKey():
            writer = Writer(OFFSET_COMMIT, flexible=False)
            writer.string(key.group)
            writer.string(key.topic)
            writer.int32(key.partition)
            return writer.done()
        case GroupMetadataKey():
            return _key(GROUP_METADATA, key.group)
        case ConsumerGroupMetadataKey():
            return _key(CONSUMER_GROUP_METADATA, key.group_id)
        case ConsumerGroupPartitionMetadataKey():
            return _key(CONSUMER_GROUP_PARTITION_METADATA, key.group_id)
        case ConsumerGroupMemberMetadataKey():
            return _key(CONSUMER_GROUP_MEMBER_METADATA, key.group_id, key.member_id)
        case ConsumerGroupTargetAssignmentMetadataKey():
            return _key(CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, key.group_id)
        case ConsumerGroupTargetAssignmentMemberKey():
            return _key(CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, key.group_id, key.member_id)
        case ConsumerGroupCurrentMemberAssignmentKey():
            return _key(CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT, key.group_id, key.member_id)
        case ConsumerGroupRegularExpressionKey():
            return _key(CONSUMER_GROUP_REGULAR_EXPRESSION, key.group_id, key.regular_expression)
        case _:
            assert_never(key)


def _key(record_type: int, *names: str) -> bytes:
    writer = Writer(record_type, flexible=False)
    for name in names:
        writer.string(name)
    return writer.done()


def encode_value(value: RecordValue) -> bytes:
    match value:
        case OffsetCommitValue():
            return _write_offset(value)
        case GroupMetadataValue():
            return _write_group(value)
        case (
            ConsumerGroupMetadataValue()
            | ConsumerGroupPartitionMetadataValue()
            | ConsumerGroupMemberMetadataValue()
            | ConsumerGroupTargetAssignmentMetadataValue()
            | ConsumerGroupTargetAssignmentMemberValue()
            | ConsumerGroupCurrentMemberAssignmentValue()
            | ConsumerGroupRegularExpressionValue()
        ):
            return encode_consumer_value(value)
        case _:
            assert_never(value)


def _write_offset(value: OffsetCommitValue) -> bytes:
    if value.expire_timestamp != -1:
        writer = Writer(_OFFSET_VERSION_WITH_EXPIRY, flexible=False)
        writer.int64(value.offset)
        writer.string(value.metadata)
        writer.int64(value.commit_timestamp)
        writer.int64(value.expire_timestamp)
        return writer.done()
    writer = Writer(_OFFSET_VERSION, flexible=True)
    writer.int64(value.offset)
    writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_timestamp)
    topic_id = value.topic_id
    writer.tags(*(() if topic_id is None else ((_TAG_TOPIC_ID, topic_id.bytes),)))
    return writer.done()


def _write_group(value: GroupMetadataValue) -> bytes:
    writer = Writer(_GROUP_VERSION, flexible=False)

    def write_member(member: MemberMetadata) -> None:
        writer.string(member.member_id)
        writer.string(member.group_instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout)
        writer.int32(member.session_timeout)
        writer.blob(member.subscription)
        writer.blob(member.assignment)

    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.current_state_timestamp)
    writer.array(value.members, write_member)
    return writer.done()


# ── reading ─────────────────────────────────────────────────────────────────────────────────────
class _Type(msgspec.Struct, frozen=True):
    read_key: Callable[[Reader], RecordKey]
    read_value: Callable[[Reader], RecordValue]
    versions: int = 1
    flexible_since: int = 0


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
    decoded_key = record_type.read_key(reader)
    if value is None:
        return CoordinatorRecord(decoded_key, None)
    value_reader = Reader(value)
    if not 0 <= value_reader.version < record_type.versions:
        raise MalformedMessage(f"version {value_reader.version} of the value of {decoded_key}")
    value_reader.flexible = value_reader.version >= record_type.flexible_since
    return CoordinatorRecord(decoded_key, record_type.read_value(value_reader))


def _read_offset(reader: Reader) -> OffsetCommitValue:
    version = reader.version
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == _OFFSET_VERSION_WITH_EXPIRY else -1
    topic_id = reader.tags().get(_TAG_TOPIC_ID)
    return OffsetCommitValue(
        offset,
        metadata,
        commit_timestamp,
        leader_epoch,
        expire_timestamp,
        None if topic_id is None else topic_id.uuid(),
    )


def _read_group(reader: Reader) -> GroupMetadataValue:
    version = reader.version

    def read_member() -> MemberMetadata:
        member_id = reader.string()
        group_instance_id = reader.nullable_string() if version >= 3 else None
        client_id = reader.string()
        client_host = reader.string()
        rebalance_timeout = reader.int32() if version >= 1 else -1
        session_timeout = reader.int32()
        subscription = reader.blob()
        assignment = reader.blob()
        reader.tags()
        return MemberMetadata(
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout,
            session_timeout,
            subscription,
            assignment,
        )

    protocol_type = reader.string()
    generation = reader.int32()
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    current_state_timestamp = reader.int64() if version >= 2 else -1
    members = reader.array(read_member)
    return GroupMetadataValue(protocol_type, generation, protocol, leader, current_state_timestamp, members)


_Key = TypeVar("_Key", bound=RecordKey)


def _by_group(make: Callable[[str], _Key]) -> Callable[[Reader], _Key]:
    return lambda reader: make(reader.string())


def _by_two(make: Callable[[str, str], _Key]) -> Callable[[Reader], _Key]:
    return lambda reader: make(reader.string(), reader.string())


_OFFSETS = _Type(
    lambda reader: OffsetCommitKey(reader.string(), reader.string(), reader.int32()),
    _read_offset,
    versions=_HIGHEST_VERSION + 1,
    flexible_since=_FLEXIBLE_SINCE,
)
_TYPES: dict[int, _Type] = {
    LEGACY_OFFSET_COMMIT: _OFFSETS,
    OFFSET_COMMIT: _OFFSETS,
    GROUP_METADATA: _Type(
        _by_group(GroupMetadataKey),
        _read_group,
        versions=_HIGHEST_VERSION + 1,
        flexible_since=_FLEXIBLE_SINCE,
    ),
    CONSUMER_GROUP_METADATA: _Type(_by_group(ConsumerGroupMetadataKey), read_metadata),
    CONSUMER_GROUP_PARTITION_METADATA: _Type(
        _by_group(ConsumerGroupPartitionMetadataKey), read_partition_metadata
    ),
    CONSUMER_GROUP_MEMBER_METADATA: _Type(_by_two(ConsumerGroupMemberMetadataKey), read_member),
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: _Type(
        _by_group(ConsumerGroupTargetAssignmentMetadataKey), read_target_metadata
    ),
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: _Type(
        _by_two(ConsumerGroupTargetAssignmentMemberKey), read_target_member
    ),
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: _Type(
        _by_two(ConsumerGroupCurrentMemberAssignmentKey), read_current_assignment
    ),
    CONSUMER_GROUP_REGULAR_EXPRESSION: _Type(
        _by_two(ConsumerGroupRegularExpressionKey), read_regular_expression
    ),
}
