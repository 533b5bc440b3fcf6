"""Commits, fetches and deletes offsets of groups.

The group checks a commit: by member and generation, or member epoch. Groups without members accept commits
from clients that name no generation; if there is no group of that id, such a commit creates a *simple* group.
A topic that was deleted and created again is another topic: offsets committed with the id of the earlier one
are not returned for it.
"""

from __future__ import annotations

from nilometer.coordinators.effects import Token
from nilometer.groups.classic.group import ClassicGroup
from nilometer.groups.group import Group
from nilometer.groups.offsets_table import OffsetsTable, tombstone
from nilometer.groups.pending_offsets import PendingOffsets
from nilometer.groups.records import CoordinatorRecord, OffsetCommitKey, OffsetCommitValue
from nilometer.groups.requests import (
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitPartitionReply,
    OffsetCommitReply,
    OffsetCommitTopic,
    OffsetCommitTopicReply,
    OffsetDelete,
    OffsetDeletePartitionReply,
    OffsetDeleteReply,
    OffsetDeleteTopic,
    OffsetDeleteTopicReply,
    OffsetFetch,
    OffsetFetchPartitionReply,
    OffsetFetchReply,
    OffsetFetchTopic,
    OffsetFetchTopicReply,
)
from nilometer.groups.shard_state import ShardState
from nilometer.groups.turn import Turn
from nilometer.wire.errors import ErrorCode


class Offsets:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self.table = OffsetsTable()
        self.pending = PendingOffsets()

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply an offset record that was written outside of a transaction, while loading or just now."""
        self.pending.on_plain_record(key, value)
        self._apply(key, value)

    def _apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        self.table.apply(key, value)
        if value is not None:
            self._create_simple_group(key.group)

    def _create_simple_group(self, group_id: str) -> None:
        """Create a simple group, which has only offsets, unless the group exists."""
        if group_id not in self._state.groups:
            self._state.groups[group_id] = ClassicGroup(group_id)

    def replay_pending(self, producer_id: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """Add an offset record that was written in a transaction, while loading or just now."""
        self.pending.add(producer_id, key, value)
        self._create_simple_group(key.group)

    def replay_end(self, producer_id: int, *, committed: bool) -> None:
        """Apply (``committed``) or drop the pending offsets of a producer whose transaction has ended."""
        for key, value in self.pending.end(producer_id):
            if committed:
                self._apply(key, value)

    def write(self, turn: Turn, record: CoordinatorRecord) -> None:
        assert isinstance(record.key, OffsetCommitKey)
        assert record.value is None or isinstance(record.value, OffsetCommitValue)
        turn.write(record)
        self.replay(record.key, record.value)

    # -- commit ----------------------------------------------------------------------------------------

    def commit(self, turn: Turn, token: Token, request: OffsetCommit) -> ErrorCode:
        """Write the offsets and reply; return the group's error for the whole request, if any.

        Without such an error single partitions may still be rejected.
        """
        verdict = self._check_commit(request)
        topics = tuple(self._commit_topic(turn, request, topic, verdict) for topic in request.topics)
        turn.reply(token, OffsetCommitReply(topics))
        return verdict

    def _check_commit(self, request: OffsetCommit) -> ErrorCode:
        group = self._state.groups.get(request.group_id)
        if group is not None:
            verdict = group.check_offset_commit(request)
            # TxnOffsetCommit knows no member epochs.
            is_stale = request.is_transactional and verdict is ErrorCode.stale_member_epoch
            return ErrorCode.illegal_generation if is_stale else verdict
        if request.generation_id_or_member_epoch < 0:
            return ErrorCode.none
        if request.is_transactional:
            return ErrorCode.illegal_generation
        return ErrorCode.group_id_not_found if request.knows_member_epochs else ErrorCode.illegal_generation

    def _commit_topic(
        self, turn: Turn, request: OffsetCommit, topic: OffsetCommitTopic, verdict: ErrorCode
    ) -> OffsetCommitTopicReply:
        replies: list[OffsetCommitPartitionReply] = []
        for partition in topic.partitions:
            error_code = verdict
            if error_code is ErrorCode.none and self._is_too_large(partition.committed_metadata):
                error_code = ErrorCode.offset_metadata_too_large
            if error_code is ErrorCode.none:
                self._write_commit(turn, request, _commit_record(turn, request, topic, partition))
            replies.append(OffsetCommitPartitionReply(partition.partition_index, error_code))
        return OffsetCommitTopicReply(topic.name, tuple(replies), topic.topic_id)

    def _write_commit(self, turn: Turn, request: OffsetCommit, record: CoordinatorRecord) -> None:
        if request.producer is None:
            self.write(turn, record)
            return
        assert isinstance(record.key, OffsetCommitKey)
        assert isinstance(record.value, OffsetCommitValue)
        turn.producer = request.producer
        turn.write(record)
        self.replay_pending(request.producer.producer_id, record.key, record.value)

    def _is_too_large(self, metadata: str | None) -> bool:
        """Whether the metadata is too long, counted in UTF-16 units as in Java."""
        if not metadata:
            return False
        return (
            len(metadata.encode("utf-16-le", "surrogatepass")) // 2
            > self._state.config.offset_metadata_max_bytes
        )

    # -- fetch -----------------------------------------------------------------------------------------

    def fetch(self, turn: Turn, token: Token, request: OffsetFetch) -> None:
        """Reply with committed offsets; an unknown group has none, which is no error."""
        group = self._state.groups.get(request.group_id)
        verdict = ErrorCode.none if group is None else group.check_offset_fetch(request)
        if verdict is not ErrorCode.none:
            turn.reply(token, OffsetFetchReply(request.group_id, verdict))
            return
        if request.topics is None:
            topics = self._everything(request)
        else:
            topics = tuple(self._fetch_topic(request, topic) for topic in request.topics)
        turn.reply(token, OffsetFetchReply(request.group_id, topics=topics))

    def _everything(self, request: OffsetFetch) -> tuple[OffsetFetchTopicReply, ...]:
        return tuple(
            OffsetFetchTopicReply(
                topic,
                tuple(
                    _unstable(partition)
                    if self._is_unstable(request, topic, partition)
                    else _fetched(partition, value)
                    for partition, value in partitions.items()
                ),
                next(iter(partitions.values())).topic_id,
            )
            for topic, partitions in self.table.of_group(request.group_id).items()
        )

    def _is_unstable(self, request: OffsetFetch, topic: str, partition: int) -> bool:
        """Whether an open transaction may change the offset, and the request wants stable offsets only."""
        return request.require_stable and self.pending.is_pending(
            OffsetCommitKey(request.group_id, topic, partition)
        )

    def _fetch_topic(self, request: OffsetFetch, topic: OffsetFetchTopic) -> OffsetFetchTopicReply:
        replies: list[OffsetFetchPartitionReply] = []
        for partition in topic.partition_indexes:
            value = self.table.get(request.group_id, topic.name, partition)
            if self._is_unstable(request, topic.name, partition):
                replies.append(_unstable(partition))
            elif value is None or _is_of_another(topic, value):
                replies.append(OffsetFetchPartitionReply(partition))
            else:
                replies.append(_fetched(partition, value))
        return OffsetFetchTopicReply(topic.name, tuple(replies), topic.topic_id)

    # -- delete ----------------------------------------------------------------------------------------

    def delete(self, turn: Turn, token: Token, request: OffsetDelete) -> None:
        group = self._state.groups.get(request.group_id)
        if group is None:
            turn.reply(token, OffsetDeleteReply(ErrorCode.group_id_not_found))
            return
        verdict = group.check_offset_delete()
        if verdict is not ErrorCode.none:
            turn.reply(token, OffsetDeleteReply(verdict))
            return
        topics = tuple(self._delete_topic(turn, group, topic) for topic in request.topics)
        turn.reply(token, OffsetDeleteReply(ErrorCode.none, topics))

    def _delete_topic(self, turn: Turn, group: Group, topic: OffsetDeleteTopic) -> OffsetDeleteTopicReply:
        is_read = group.is_subscribed_to(topic.name)
        verdict = ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none
        for partition in () if is_read else topic.partition_indexes:
            if self._has_offset(OffsetCommitKey(group.group_id, topic.name, partition)):
                self.write(turn, tombstone(group.group_id, topic.name, partition))
        return OffsetDeleteTopicReply(
            topic.name,
            tuple(OffsetDeletePartitionReply(partition, verdict) for partition in topic.partition_indexes),
        )

    def delete_all(self, turn: Turn, group_id: str) -> None:
        for record in self.table.tombstones(group_id):
            self.write(turn, record)
        for key in self.pending.of_group(group_id):
            self.write(turn, CoordinatorRecord(key, None))

    def has_any(self, group_id: str) -> bool:
        """Whether the group has offsets, committed or pending."""
        return bool(self.table.of_group(group_id) or self.pending.of_group(group_id))

    def _has_offset(self, key: OffsetCommitKey) -> bool:
        return self.table.get(key.group, key.topic, key.partition) is not None or self.pending.is_pending(key)


def _commit_record(
    turn: Turn, request: OffsetCommit, topic: OffsetCommitTopic, partition: OffsetCommitPartition
) -> CoordinatorRecord:
    value = OffsetCommitValue(
        partition.committed_offset,
        partition.committed_metadata or "",
        turn.wall_ms,
        partition.committed_leader_epoch,
        -1 if request.retention_time_ms == -1 else turn.wall_ms + request.retention_time_ms,
        topic.topic_id,
    )
    return CoordinatorRecord(OffsetCommitKey(request.group_id, topic.name, partition.partition_index), value)


def _is_of_another(topic: OffsetFetchTopic, value: OffsetCommitValue) -> bool:
    return None not in (topic.topic_id, value.topic_id) and topic.topic_id != value.topic_id


def _unstable(partition: int) -> OffsetFetchPartitionReply:
    return OffsetFetchPartitionReply(partition, error_code=ErrorCode.unstable_offset_commit)


def _fetched(partition: int, value: OffsetCommitValue) -> OffsetFetchPartitionReply:
    return OffsetFetchPartitionReply(partition, value.offset, value.leader_epoch, value.metadata)
