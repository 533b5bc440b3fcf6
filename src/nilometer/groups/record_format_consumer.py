"""The values of a consumer group's records (KIP-848): all of version 0, all flexible."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from nilometer.coordinators.record_bytes import Reader, Writer, int32s, nested
from nilometer.groups.records import (
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    PartitionRacks,
    TopicMetadata,
)
from nilometer.groups.requests import TopicPartitions

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


def encode_value(value: ConsumerValue) -> bytes:
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
