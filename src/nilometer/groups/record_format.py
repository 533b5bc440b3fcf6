"""Kafka's binary format of ``__consumer_offsets`` records: all versions are read, Kafka's are written.

A key begins with its type, a value with its version. Values are written in the versions that Kafka writes:
offset commits in 4 (in 1 if they have an expiry time), group metadata in 3, all others in 0. Keys of unknown
types (such as share and streams groups) are read as None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, assert_never

import msgspec

from nilometer.coordinators.record_bytes import Reader, Writer
from nilometer.groups import record_format_consumer as consumer
from nilometer.groups.offset_commit_format import read_offset_commit
from nilometer.groups.records import (
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
    RecordKey,
    RecordValue,
)
from nilometer.wire.errors import MalformedMessage

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
            return consumer.encode_value(value)
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
    CONSUMER_GROUP_METADATA: _Type(_by_group(ConsumerGroupMetadataKey), consumer.read_metadata),
    CONSUMER_GROUP_PARTITION_METADATA: _Type(
        _by_group(ConsumerGroupPartitionMetadataKey), consumer.read_partition_metadata
    ),
    CONSUMER_GROUP_MEMBER_METADATA: _Type(_by_two(ConsumerGroupMemberMetadataKey), consumer.read_member),
    CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA: _Type(
        _by_group(ConsumerGroupTargetAssignmentMetadataKey), consumer.read_target_metadata
    ),
    CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER: _Type(
        _by_two(ConsumerGroupTargetAssignmentMemberKey), consumer.read_target_member
    ),
    CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT: _Type(
        _by_two(ConsumerGroupCurrentMemberAssignmentKey), consumer.read_current_assignment
    ),
    CONSUMER_GROUP_REGULAR_EXPRESSION: _Type(
        _by_two(ConsumerGroupRegularExpressionKey), consumer.read_regular_expression
    ),
}
