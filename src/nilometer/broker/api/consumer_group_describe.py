"""ConsumerGroupDescribe (KIP-848): epochs, members and assignments of consumer groups.

Versions: 1 has the protocol of each member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from nilometer.broker.api.access import access_of
from nilometer.broker.api.group_access import ask_groups
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupDescribeReply,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedTopicPartitions,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    groups = request.body.group_ids
    if not services.groups.serves_consumer_groups:
        unsupported = ErrorCode.unsupported_version
        refused = tuple(DescribedConsumerGroup(group, unsupported) for group in groups)
        return _respond(services, request, [ConsumerGroupDescribeReply(refused)])
    return ask_groups(
        services,
        request,
        Operation.DESCRIBE,
        [(group, ConsumerGroupDescribe((group,))) for group in groups],
        lambda replies: _respond(services, request, replies),
    )


def _respond(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, ConsumerGroupDescribeReply) for group in reply.groups
    ]
    groups = tuple(_group(services, request, _visible(services, request, group)) for group in described)
    return request.respond(throttle_time_ms=0, groups=groups)


def _visible(services: Services, request: Request, group: DescribedConsumerGroup) -> DescribedConsumerGroup:
    """Return ``group``, or an error if a member has a topic that the client may not describe."""
    access = access_of(services, request)
    if access.is_full:
        return group
    names = {
        topic.topic_name
        for member in group.members
        for topic in (*member.assignment, *member.target_assignment)
    }
    if access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, sorted(names)) == names:
        return group
    why = "The group has described topic(s) that the client is not authorized to describe."
    return DescribedConsumerGroup(group.group_id, ErrorCode.topic_authorization_failed, why)


def _group(services: Services, request: Request, group: DescribedConsumerGroup) -> Message:
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_authorized_operations and group.error_code is ErrorCode.none:
        operations = access_of(services, request).operations(ResourceType.GROUP, group.group_id)
    return request.make(
        "DescribedGroup",
        error_code=group.error_code,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor_name,
        members=LazySequence(partial(_member, request), group.members),
        authorized_operations=operations,
    )


def _member(request: Request, member: DescribedConsumerGroupMember) -> Message:
    return request.make(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex or "",
        assignment=_assignment(request, member.assignment),
        target_assignment=_assignment(request, member.target_assignment),
        member_type=member.member_type,
    )


def _assignment(request: Request, topics: Sequence[DescribedTopicPartitions]) -> Message:
    return request.make(
        "Assignment",
        topic_partitions=tuple(
            request.make(
                "TopicPartitions",
                topic_id=topic.topic_id,
                topic_name=topic.topic_name,
                partitions=topic.partitions,
            )
            for topic in topics
        ),
    )


API = ApiSpec(
    key=ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    handle=handle,
    divisions=(Division(("group_ids",), ("groups",), repeated=Repeated.AT_MOST_TWICE),),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
