"""The description of a group for ConsumerGroupDescribe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from nilometer.groups.config import GroupConfig
from nilometer.groups.consumer.group import ConsumerGroup
from nilometer.groups.consumer.member import Member
from nilometer.groups.consumer.topics import Topics
from nilometer.groups.requests import (
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)

CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


def described(group: ConsumerGroup, topics: Topics, config: GroupConfig) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor() or config.group_consumer_assignors[0],
        members=tuple(
            _member(group, group.members[member_id], topics) for member_id in sorted(group.members)
        ),
    )


def _member(group: ConsumerGroup, member: Member, topics: Topics) -> DescribedConsumerGroupMember:
    return DescribedConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(member.subscribed_topic_names)),
        subscribed_topic_regex=member.subscribed_topic_regex or None,
        assignment=_partitions(_owned(member), topics),
        target_assignment=_partitions(group.target_of(member.member_id), topics),
        member_type=CLASSIC_MEMBER_TYPE if member.uses_classic_protocol else CONSUMER_MEMBER_TYPE,
    )


def _owned(member: Member) -> dict[UUID, set[int]]:
    """Return the partitions that the member owns: the assigned ones and those it must still revoke."""
    found: dict[UUID, set[int]] = {}
    for owned in (member.assigned, member.pending_revocation):
        for topic_id, partitions in owned.items():
            found.setdefault(topic_id, set()).update(partitions)
    return found


def _partitions(
    assignment: Mapping[UUID, Iterable[int]], topics: Topics
) -> tuple[DescribedTopicPartitions, ...]:
    """Return the partitions of topics that still exist, sorted by topic name."""
    named = ((topics.name_of(topic_id), topic_id) for topic_id in assignment)
    return tuple(
        DescribedTopicPartitions(topic_id, name, tuple(sorted(assignment[topic_id])))
        for name, topic_id in sorted((name, topic_id) for name, topic_id in named if name is not None)
    )
