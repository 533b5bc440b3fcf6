"""Share groups (KIP-932): ShareGroupHeartbeat, with which a member joins, stays in and leaves one,
ShareGroupDescribe, and DescribeSharePartitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.groups.consumer_groups import group_message, visible_group
from nilometer.broker.groups.group_coordinator import GroupCoordinator, client_host, client_id
from nilometer.broker.replicas.replica_manager import ReplicaManager
from nilometer.broker.responses import Response
from nilometer.broker.sharing.share_partitions import SharePartitions
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import NAME_LENGTH_MAX
from nilometer.groups.requests import (
    DescribedShareGroup,
    DescribedShareGroupMember,
    GroupResult,
    ShareGroupDescribe,
    ShareGroupDescribeResult,
    ShareGroupHeartbeat,
    ShareGroupHeartbeatResult,
)
from nilometer.runtime import Runtime
from nilometer.wire import own_apis as wire
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import NONE, ErrorCode, KafkaError
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    runtime: Runtime
    tasks: Tasks
    turns: Turns
    replicas: ReplicaManager
    groups: GroupCoordinator
    share_partitions: SharePartitions
    rights: Rights


# ShareGroupHeartbeat: with it a member joins, stays in and leaves a share group.


def handle_heartbeat(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.groups.serves("share"):
        return _respond_heartbeat(request, ShareGroupHeartbeatResult(ErrorCode.unsupported_version))
    body = request.body
    names: Sequence[str] | None = body.subscribed_topic_names
    access = parts.rights.access(request)
    may_join = access.is_full or access.allows(
        Operation.READ, ResourceType.GROUP, body.group_id, report=False
    )  # the coordinator reports it
    if may_join and access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names or ()) != set(names or ()):
        return _respond_heartbeat(request, ShareGroupHeartbeatResult(ErrorCode.topic_authorization_failed))
    asked = of_message(
        ShareGroupHeartbeat,
        body,
        subscribed_topic_names=None if names is None else tuple(names),
        client_id=client_id(request),
        client_host=client_host(request),
    )
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        ShareGroupHeartbeatResult,
        partial(_respond_heartbeat, request),
    )


def _respond_heartbeat(request: Request, result: ShareGroupHeartbeatResult) -> Response:
    assignment = None
    if result.assignment is not None:
        assignment = request.make("Assignment", topic_partitions=_topics(request, result.assignment))
    return request.respond(**(asdict(result) | {"assignment": assignment}))


def _topics(request: Request, topics: Sequence[msgspec.Struct]) -> Sequence[Message]:
    return LazySequence(lambda each: request.make("TopicPartitions", **asdict(each)), topics)


# ShareGroupDescribe: epochs, members and assignments of share groups.


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    groups = request.body.group_ids
    if not parts.groups.serves("share"):
        unsupported = ErrorCode.unsupported_version
        refused = tuple(DescribedShareGroup(group, unsupported) for group in groups)
        return _respond_describe(parts, request, refused)
    asked = [(group, ShareGroupDescribe((group,))) for group in groups]
    if parts.rights.access(request).is_full:
        return parts.groups.ask_groups(
            request,
            Operation.DESCRIBE,
            asked,
            lambda results: _respond_describe(parts, request, _groups_of(results)),
        )
    return parts.tasks.spawn(_describe_visible(parts, request, asked), kind="ShareGroupDescribe")


def _groups_of(results: Sequence[GroupResult]) -> list[DescribedShareGroup]:
    return [
        group for result in results if isinstance(result, ShareGroupDescribeResult) for group in result.groups
    ]


def _respond_describe(parts: Parts, request: Request, described: Sequence[DescribedShareGroup]) -> Response:
    return request.respond(
        groups=tuple(group_message(parts.rights, request, _member, group) for group in described)
    )


async def _describe_visible(
    parts: Parts, request: Request, asked: Sequence[tuple[str, ShareGroupDescribe]]
) -> Response:
    """Describe groups to a client that may not describe all topics: their members are walked first."""
    work = LongWork(parts.turns)
    results = await parts.groups.ask_groups_in_turns(request, Operation.DESCRIBE, asked, work)
    described = [
        await visible_group(parts.rights, request, group, lambda one: one.assignment, work)
        for group in _groups_of(results)
    ]
    return _respond_describe(parts, request, described)


def _member(request: Request, member: DescribedShareGroupMember) -> Message:
    assignment = request.make("Assignment", topic_partitions=_topics(request, member.assignment))
    return request.make("Member", **(asdict(member) | {"assignment": assignment}))


# DescribeSharePartitions (Nilometer's own): which records of the partitions led here each member has.

PARTITIONS_MAX = 64
"""Of one request; one with more is refused: each has the topic's name in the response."""
RANGES_MAX = 1_000
"""Of one response: building them holds the event loop for about a millisecond."""
RANGES_PER_PARTITION_MAX = 200
LOCKS_MAX = 100
"""Members with locks of one partition."""


def handle_describe_partitions(parts: Parts, request: Request) -> Response:
    body: wire.DescribeSharePartitionsRequest = request.body
    access = parts.rights.access(request)
    error = NONE
    if not parts.groups.serves("share"):
        error = ErrorCode.unsupported_version
    elif not access.allows(Operation.DESCRIBE, ResourceType.GROUP, body.group_id):
        error = ErrorCode.group_authorization_failed
    elif (
        max(len(body.topics), sum(len(each.partitions) for each in body.topics)) > PARTITIONS_MAX
        or max((len(each.topic) for each in body.topics), default=0) > NAME_LENGTH_MAX
    ):
        error = ErrorCode.invalid_request
    if error is not NONE:
        return request.respond(error_code=int(error))
    described: list[wire.SharePartitionState] = []
    ranges_left = RANGES_MAX
    for of_topic in body.topics:
        allowed = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, of_topic.topic)
        for index in of_topic.partitions:
            if not allowed:
                one = _failed(of_topic.topic, index, ErrorCode.topic_authorization_failed)
            else:
                one = _described(parts, body.group_id, of_topic.topic, index, ranges_left)
            ranges_left -= len(one.ranges)
            described.append(one)
    return request.respond(partitions=tuple(described))


def _failed(topic: str, index: int, error: ErrorCode) -> wire.SharePartitionState:
    return wire.SharePartitionState(topic=topic, partition=index, error_code=int(error))


def _described(
    parts: Parts, group_id: str, topic: str, index: int, ranges_max: int
) -> wire.SharePartitionState:
    try:
        partition = parts.replicas.partition(topic, index)
        partition.leader  # noqa: B018 - raises if it is led elsewhere
    except KafkaError as error:
        return _failed(topic, index, error.code)
    led = parts.share_partitions.loaded(group_id, partition.key)
    core = None if led is None else led.core
    if led is None or core is None or led.partition is not partition:
        return wire.SharePartitionState(topic=topic, partition=index)
    led.end_locks()
    limit = min(ranges_max, RANGES_PER_PARTITION_MAX)
    view, now_ms = core.view(limit, LOCKS_MAX), parts.runtime.clock.monotonic_ms()
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


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.SHARE_GROUP_HEARTBEAT,
            versions=(1, 1),
            handle=partial(handle_heartbeat, parts),
            rights=(
                Right(Operation.READ, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.SHARE_GROUP_DESCRIBE,
            versions=(1, 1),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(("group_ids",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),
            ),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=wire.DESCRIBE_SHARE_PARTITIONS,
            versions=(0, 0),
            handle=partial(handle_describe_partitions, parts),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
    )
