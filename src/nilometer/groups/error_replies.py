"""Replies with one error for a whole request, set in every error field of its API."""

from __future__ import annotations

from typing import assert_never

from nilometer.groups.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupDescribeReply,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatReply,
    DeletedGroup,
    DeleteGroups,
    DeleteGroupsReply,
    DescribedConsumerGroup,
    DescribedGroup,
    DescribeGroups,
    DescribeGroupsReply,
    GroupRequest,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    ListGroups,
    ListGroupsReply,
    OffsetCommit,
    OffsetCommitPartitionReply,
    OffsetCommitReply,
    OffsetCommitTopicReply,
    OffsetDelete,
    OffsetDeleteReply,
    OffsetFetch,
    OffsetFetchReply,
    Reply,
    SyncGroup,
    SyncGroupReply,
)
from nilometer.wire.errors import ErrorCode


def refusal(request: GroupRequest, error_code: ErrorCode, message: str | None = None) -> Reply:
    match request:
        case JoinGroup():
            return JoinGroupReply(error_code, request.member_id)
        case SyncGroup():
            return SyncGroupReply(error_code)
        case Heartbeat():
            return HeartbeatReply(error_code)
        case LeaveGroup():
            return LeaveGroupReply(error_code)
        case OffsetCommit():
            return _refused_commit(request, error_code)
        case OffsetFetch():
            return OffsetFetchReply(request.group_id, error_code)
        case OffsetDelete():
            return OffsetDeleteReply(error_code)
        case ListGroups():
            return ListGroupsReply(error_code=error_code)
        case DescribeGroups():
            return DescribeGroupsReply(
                tuple(DescribedGroup(group_id, error_code, message) for group_id in request.groups)
            )
        case DeleteGroups():
            return DeleteGroupsReply(
                tuple(DeletedGroup(group_id, error_code) for group_id in request.groups_names)
            )
        case ConsumerGroupHeartbeat():
            return ConsumerGroupHeartbeatReply(error_code, message)
        case ConsumerGroupDescribe():
            return ConsumerGroupDescribeReply(
                tuple(DescribedConsumerGroup(group_id, error_code, message) for group_id in request.group_ids)
            )
        case _:
            assert_never(request)


def _refused_commit(request: OffsetCommit, error_code: ErrorCode) -> OffsetCommitReply:
    return OffsetCommitReply(
        tuple(
            OffsetCommitTopicReply(
                topic.name,
                tuple(
                    OffsetCommitPartitionReply(partition.partition_index, error_code)
                    for partition in topic.partitions
                ),
                topic.topic_id,
            )
            for topic in request.topics
        )
    )
