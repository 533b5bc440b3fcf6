"""Share groups (KIP-932): ShareGroupHeartbeat, with which a member joins, stays in and leaves one,
ShareGroupDescribe, and DescribeSharePartitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.access import access_of
from nilometer.broker.api.group_access import ask_group, ask_groups, client_host, client_id
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.replies import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    DescribedShareGroup,
    DescribedShareGroupMember,
    ShareGroupDescribe,
    ShareGroupDescribeReply,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatReply,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import NONE, ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated

# ShareGroupHeartbeat: with it a member joins, stays in and leaves a share group.


def handle_heartbeat(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not services.groups.serves_share_groups:
        return _respond_heartbeat(request, ShareGroupHeartbeatReply(ErrorCode.unsupported_version))
    body = request.body
    names: Sequence[str] | None = body.subscribed_topic_names
    access = access_of(services, request)
    may_join = access.is_full or access.allows(Operation.READ, ResourceType.GROUP, body.group_id)
    if may_join and access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names or ()) != set(names or ()):
        return _respond_heartbeat(request, ShareGroupHeartbeatReply(ErrorCode.topic_authorization_failed))
    asked = of_message(
        ShareGroupHeartbeat,
        body,
        subscribed_topic_names=None if names is None else tuple(names),
        client_id=client_id(request),
        client_host=client_host(request),
    )
    return ask_group(
        services,
        request,
        Operation.READ,
        asked,
        ShareGroupHeartbeatReply,
        partial(_respond_heartbeat, request),
    )


def _respond_heartbeat(request: Request, reply: ShareGroupHeartbeatReply) -> Reply:
    assignment = None
    if reply.assignment is not None:
        assignment = request.make("Assignment", topic_partitions=_topics(request, reply.assignment))
    return request.respond(**(asdict(reply) | {"assignment": assignment}))


def _topics(request: Request, topics: Sequence[msgspec.Struct]) -> Sequence[Message]:
    return LazySequence(lambda each: request.make("TopicPartitions", **asdict(each)), topics)


HEARTBEAT = ApiSpec(
    key=ApiKey.SHARE_GROUP_HEARTBEAT,
    versions=(1, 1),
    handle=handle_heartbeat,
    rights=(
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)


# ShareGroupDescribe: epochs, members and assignments of share groups.


def handle_describe(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    groups = request.body.group_ids
    if not services.groups.serves_share_groups:
        unsupported = ErrorCode.unsupported_version
        refused = tuple(DescribedShareGroup(group, unsupported) for group in groups)
        return _respond_describe(services, request, [ShareGroupDescribeReply(refused)])
    return ask_groups(
        services,
        request,
        Operation.DESCRIBE,
        [(group, ShareGroupDescribe((group,))) for group in groups],
        lambda replies: _respond_describe(services, request, replies),
    )


def _respond_describe(services: Services, request: Request, replies: Sequence[GroupReply]) -> Reply:
    described = [
        group for reply in replies if isinstance(reply, ShareGroupDescribeReply) for group in reply.groups
    ]
    groups = tuple(_group(services, request, _visible(services, request, group)) for group in described)
    return request.respond(groups=groups)


def _visible(services: Services, request: Request, group: DescribedShareGroup) -> DescribedShareGroup:
    """Return ``group``, or an error if a member has a topic that the client may not describe."""
    access = access_of(services, request)
    if access.is_full:
        return group
    names = {topic.topic_name for member in group.members for topic in member.assignment}
    if access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, sorted(names)) == names:
        return group
    why = "The group has described topic(s) that the client is not authorized to describe."
    return DescribedShareGroup(group.group_id, ErrorCode.topic_authorization_failed, why)


def _group(services: Services, request: Request, group: DescribedShareGroup) -> Message:
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_authorized_operations and group.error_code is ErrorCode.none:
        operations = access_of(services, request).operations(ResourceType.GROUP, group.group_id)
    return request.make(
        "DescribedGroup",
        **(asdict(group) | {"members": LazySequence(partial(_member, request), group.members)}),
        authorized_operations=operations,
    )


def _member(request: Request, member: DescribedShareGroupMember) -> Message:
    assignment = request.make("Assignment", topic_partitions=_topics(request, member.assignment))
    return request.make("Member", **(asdict(member) | {"assignment": assignment}))


DESCRIBE = ApiSpec(
    key=ApiKey.SHARE_GROUP_DESCRIBE,
    versions=(1, 1),
    handle=handle_describe,
    divisions=(Division(("group_ids",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)


# DescribeSharePartitions (Nilometer's own): which records of the partitions led here each member has.

PARTITIONS_MAX = 64
"""Of one request; those beyond get INVALID_REQUEST."""
RANGES_MAX = 1_000
"""Of one response: building them holds the event loop for about a millisecond."""
RANGES_PER_PARTITION_MAX = 200
LOCKS_MAX = 100
"""Members with locks of one partition."""


def handle_describe_partitions(services: Services, request: Request) -> Reply:
    body: wire.DescribeSharePartitionsRequest = request.body
    access = access_of(services, request)
    error = NONE
    if not services.groups.serves_share_groups:
        error = ErrorCode.unsupported_version
    elif not access.allows(Operation.DESCRIBE, ResourceType.GROUP, body.group_id):
        error = ErrorCode.group_authorization_failed
    if error is not NONE:
        return request.respond(error_code=int(error))
    described: list[wire.SharePartitionState] = []
    ranges_left = RANGES_MAX
    for of_topic in body.topics:
        allowed = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, of_topic.topic)
        for index in of_topic.partitions:
            if len(described) >= PARTITIONS_MAX:
                one = _failed(of_topic.topic, index, ErrorCode.invalid_request)
            elif not allowed:
                one = _failed(of_topic.topic, index, ErrorCode.topic_authorization_failed)
            else:
                one = _described(services, body.group_id, of_topic.topic, index, ranges_left)
            ranges_left -= len(one.ranges)
            described.append(one)
    return request.respond(partitions=tuple(described))


def _failed(topic: str, index: int, error: ErrorCode) -> wire.SharePartitionState:
    return wire.SharePartitionState(topic=topic, partition=index, error_code=int(error))


def _described(
    services: Services, group_id: str, topic: str, index: int, ranges_max: int
) -> wire.SharePartitionState:
    try:
        partition = services.replicas.partition(topic, index)
        partition.leader  # noqa: B018 - raises if it is led elsewhere
    except KafkaError as error:
        return _failed(topic, index, error.code)
    led = services.share_partitions.loaded(group_id, partition.key)
    core = None if led is None else led.core
    if led is None or core is None or led.partition is not partition:
        return wire.SharePartitionState(topic=topic, partition=index)
    led.end_locks()
    limit = min(ranges_max, RANGES_PER_PARTITION_MAX)
    view, now_ms = core.view(limit, LOCKS_MAX), services.runtime.clock.monotonic_ms()
    return wire.SharePartitionState(
        topic=topic,
        partition=index,
        is_loaded=True,
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        high_watermark=partition.replica.high_watermark,
        lag=led.lag,
        available=view.available,
        acquired=view.acquired,
        acknowledged=view.acknowledged,
        archiving=view.archiving,
        archived=view.archived,
        held=tuple(wire.MemberLocks(member_id=member, records=records) for member, records in view.held),
        ranges=tuple(
            wire.DeliveryRange(
                first_offset=span.first_offset,
                last_offset=span.last_offset,
                state=span.state.name.lower(),
                delivery_count=span.delivery_count,
                member_id=span.member_id,
                lock_left_ms=None if span.lock_ends_ms is None else span.lock_ends_ms - now_ms,
            )
            for span in view.spans
        ),
        has_more_ranges=core.ranges > limit,
    )


DESCRIBE_PARTITIONS = ApiSpec(
    key=wire.DESCRIBE_SHARE_PARTITIONS,
    versions=(0, 0),
    handle=handle_describe_partitions,
    rights=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
