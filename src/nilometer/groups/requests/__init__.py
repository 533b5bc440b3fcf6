"""Requests to a group coordinator and their replies, independent of API versions.

They have Kafka's field names in snake case. Fields missing in a version have defaults; if a version changes
the *meaning* of a request, the request has a flag for that. Requests for several groups are split before: one
OffsetFetch is for one group; a ListGroups goes to every shard.
"""

from __future__ import annotations

from typing import TypeAlias

from nilometer.groups.requests.administration import (
    DeletedGroup,
    DeleteGroups,
    DeleteGroupsReply,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroups,
    DescribeGroupsReply,
    LastRebalance,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from nilometer.groups.requests.classic import (
    NO_GENERATION,
    NO_MEMBER_ID,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupMember,
    LeaveGroupMemberReply,
    LeaveGroupReply,
    SyncGroup,
    SyncGroupAssignment,
    SyncGroupReply,
    metadata_bytes,
)
from nilometer.groups.requests.consumer import (
    ConsumerGroupDescribe,
    ConsumerGroupDescribeReply,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatReply,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
    TopicPartitions,
    subscription_bytes,
)
from nilometer.groups.requests.offsets import (
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

__all__ = [
    "NO_GENERATION",
    "NO_MEMBER_ID",
    "ConsumerGroupDescribe",
    "ConsumerGroupDescribeReply",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupHeartbeatReply",
    "DeleteGroups",
    "DeleteGroupsReply",
    "DeletedGroup",
    "DescribeGroups",
    "DescribeGroupsReply",
    "DescribedConsumerGroup",
    "DescribedConsumerGroupMember",
    "DescribedGroup",
    "DescribedGroupMember",
    "DescribedTopicPartitions",
    "GroupRequest",
    "Heartbeat",
    "HeartbeatReply",
    "JoinGroup",
    "JoinGroupMember",
    "JoinGroupProtocol",
    "JoinGroupReply",
    "LastRebalance",
    "LeaveGroup",
    "LeaveGroupMember",
    "LeaveGroupMemberReply",
    "LeaveGroupReply",
    "ListGroups",
    "ListGroupsReply",
    "ListedGroup",
    "OffsetCommit",
    "OffsetCommitPartition",
    "OffsetCommitPartitionReply",
    "OffsetCommitReply",
    "OffsetCommitTopic",
    "OffsetCommitTopicReply",
    "OffsetDelete",
    "OffsetDeletePartitionReply",
    "OffsetDeleteReply",
    "OffsetDeleteTopic",
    "OffsetDeleteTopicReply",
    "OffsetFetch",
    "OffsetFetchPartitionReply",
    "OffsetFetchReply",
    "OffsetFetchTopic",
    "OffsetFetchTopicReply",
    "Reply",
    "SyncGroup",
    "SyncGroupAssignment",
    "SyncGroupReply",
    "TopicPartitions",
    "metadata_bytes",
    "subscription_bytes",
]

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
