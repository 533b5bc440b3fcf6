"""Writes a consumer group's records, and applies each of them to the group at once."""

from __future__ import annotations

from nilometer.groups.consumer.assignment import Assignment, topic_partitions
from nilometer.groups.consumer.group import ConsumerGroup
from nilometer.groups.consumer.member import Member
from nilometer.groups.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    RecordKey,
    RecordValue,
)
from nilometer.groups.turn import Turn


class Draft:
    """Writes the records of one group in one turn (one call of the shard)."""

    __slots__ = ("group", "turn")

    def __init__(self, group: ConsumerGroup, turn: Turn) -> None:
        self.group = group
        self.turn = turn

    def _write(self, key: RecordKey, value: RecordValue | None) -> None:
        record = CoordinatorRecord(key, value)
        self.group.apply(record)
        self.turn.write(record)

    def member_metadata(self, member: Member) -> None:
        key = ConsumerGroupMemberMetadataKey(self.group.group_id, member.member_id)
        self._write(key, member.metadata_value())

    def member_assignment(self, member: Member) -> None:
        key = ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, member.member_id)
        self._write(key, member.assignment_value())

    def target(self, member_id: str, assignment: Assignment) -> None:
        self._write(
            ConsumerGroupTargetAssignmentMemberKey(self.group.group_id, member_id),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions(assignment)),
        )

    def assignment_epoch(self, epoch: int) -> None:
        self._write(
            ConsumerGroupTargetAssignmentMetadataKey(self.group.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(epoch, self.turn.wall_ms),
        )

    def group_epoch(self, epoch: int, metadata_hash: int) -> None:
        self._write(
            ConsumerGroupMetadataKey(self.group.group_id), ConsumerGroupMetadataValue(epoch, metadata_hash)
        )
        if self.group.has_partition_metadata:
            self._write(ConsumerGroupPartitionMetadataKey(self.group.group_id), None)

    def regex(self, regex: str, topics: frozenset[str], version: int) -> None:
        self._write(
            ConsumerGroupRegularExpressionKey(self.group.group_id, regex),
            ConsumerGroupRegularExpressionValue(tuple(sorted(topics)), version, self.turn.wall_ms),
        )

    def remove_regex(self, regex: str) -> None:
        self._write(ConsumerGroupRegularExpressionKey(self.group.group_id, regex), None)

    def remove_member(self, member_id: str) -> None:
        """Write the tombstones of a member: its assignments first, its metadata last."""
        group_id = self.group.group_id
        self._write(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None)
        self._write(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None)
        self._write(ConsumerGroupMemberMetadataKey(group_id, member_id), None)
