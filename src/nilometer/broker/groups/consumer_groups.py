"""Consumer groups of KIP-848: ConsumerGroupHeartbeat, with which a member joins, stays in and leaves one, and
ConsumerGroupDescribe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from nilometer.broker.api.access import Rights
from nilometer.broker.api.metadata import OPERATIONS_NOT_ASKED
from nilometer.broker.api.spec import ApiSpec, Request, Right, of_message
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.groups.group_coordinator import GroupCoordinator, client_host, client_id
from nilometer.broker.responses import Response
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import LongWork, Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    ConsumerGroupDescribe,
    ConsumerGroupDescribeResult,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatResult,
    DescribedConsumerGroup,
    DescribedConsumerGroupMember,
    DescribedShareGroup,
    DescribedTopicPartitions,
    GroupResult,
    TopicPartitions,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated

G = TypeVar("G", DescribedConsumerGroup, DescribedShareGroup)


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns
    metadata: MetadataLog
    groups: GroupCoordinator
    rights: Rights


# ConsumerGroupHeartbeat (KIP-848): with it a member joins, stays in and leaves a consumer group.
#
# Versions: 1 adds subscription by regular expression, and member ids chosen by the members.

FIRST_WITH_OWN_MEMBER_IDS = 1


def handle_heartbeat(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.groups.serves("consumer"):
        return _respond_heartbeat(parts, request, ConsumerGroupHeartbeatResult(ErrorCode.unsupported_version))
    body = request.body
    names: Sequence[str] | None = body.subscribed_topic_names
    access = parts.rights.access(request)
    may_join = access.is_full or access.allows(
        Operation.READ, ResourceType.GROUP, body.group_id, report=False
    )  # the coordinator reports it
    if may_join and access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names or ()) != set(names or ()):
        return _respond_heartbeat(
            parts, request, ConsumerGroupHeartbeatResult(ErrorCode.topic_authorization_failed)
        )
    owned: Sequence[Message] | None = body.topic_partitions
    asked = of_message(
        ConsumerGroupHeartbeat,
        body,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        subscribed_topic_names=None if names is None else tuple(names),
        topic_partitions=(
            None
            if owned is None
            else tuple(TopicPartitions(each.topic_id, tuple(each.partitions)) for each in owned)
        ),
        client_id=client_id(request),
        client_host=client_host(request),
        requires_member_id=request.version >= FIRST_WITH_OWN_MEMBER_IDS,
        peer=request.connection.peer,
    )
    return parts.groups.ask_group(
        request,
        Operation.READ,
        asked,
        ConsumerGroupHeartbeatResult,
        lambda result: _respond_heartbeat(parts, request, result),
    )


def _respond_heartbeat(parts: Parts, request: Request, result: ConsumerGroupHeartbeatResult) -> Response:
    assignment = None
    if result.assignment is not None:
        visible = [each for each in result.assignment if _may_describe(parts, request, each.topic_id)]
        # A member that has its assignment would take a repeat without some of it for a revocation.
        if len(visible) == len(result.assignment) or not result.is_repeat:
            assignment = request.make(
                "Assignment",
                topic_partitions=tuple(request.make("TopicPartitions", **asdict(each)) for each in visible),
            )
    return request.respond(
        error_code=result.error_code,
        error_message=result.error_message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _may_describe(parts: Parts, request: Request, topic_id: UUID) -> bool:
    """Return whether a member may know that it has the topic: a regular expression selects also others."""
    access = parts.rights.access(request)
    topic = None if access.is_full else parts.metadata.image.topic_by_uuid(topic_id)
    return topic is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, report=False)


# ConsumerGroupDescribe (KIP-848): epochs, members and assignments of consumer groups.
#
# Versions: 1 has the protocol of each member.


def handle_describe(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    groups = request.body.group_ids
    if not parts.groups.serves("consumer"):
        unsupported = ErrorCode.unsupported_version
        refused = tuple(DescribedConsumerGroup(group, unsupported) for group in groups)
        return _respond_describe(parts, request, refused)
    asked = [(group, ConsumerGroupDescribe((group,))) for group in groups]
    if parts.rights.access(request).is_full:
        return parts.groups.ask_groups(
            request,
            Operation.DESCRIBE,
            asked,
            lambda results: _respond_describe(parts, request, _groups_of(results)),
        )
    return parts.tasks.spawn(_describe_visible(parts, request, asked), kind="ConsumerGroupDescribe")


def _groups_of(results: Sequence[GroupResult]) -> list[DescribedConsumerGroup]:
    return [
        group
        for result in results
        if isinstance(result, ConsumerGroupDescribeResult)
        for group in result.groups
    ]


def _respond_describe(
    parts: Parts, request: Request, described: Sequence[DescribedConsumerGroup]
) -> Response:
    return request.respond(
        groups=tuple(group_message(parts.rights, request, _member, group) for group in described)
    )


async def _describe_visible(
    parts: Parts, request: Request, asked: Sequence[tuple[str, ConsumerGroupDescribe]]
) -> Response:
    """Describe groups to a client that may not describe all topics: their members are walked first."""
    work = LongWork(parts.turns)
    results = await parts.groups.ask_groups_in_turns(request, Operation.DESCRIBE, asked, work)
    described = [
        await visible_group(
            parts.rights, request, group, lambda one: (*one.assignment, *one.target_assignment), work
        )
        for group in _groups_of(results)
    ]
    return _respond_describe(parts, request, described)


async def visible_group(
    rights: Rights,
    request: Request,
    group: G,
    topics_of: Callable[[Any], Sequence[DescribedTopicPartitions]],
    work: LongWork,
) -> G:
    """Return ``group``, or an error if a member has a topic that the client may not describe."""
    names: set[str] = set()
    for member in group.members:
        topics = topics_of(member)
        names.update(topic.topic_name for topic in topics)
        await work.step(1 + len(topics))
    access = rights.access(request)
    if access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, sorted(names)) == names:
        return group
    why = "The group has described topic(s) that the client is not authorized to describe."
    return type(group)(group.group_id, ErrorCode.topic_authorization_failed, why)


def group_message(
    rights: Rights, request: Request, member: Callable[[Request, Any], Message], group: G
) -> Message:
    """Return a described group for the response; ``member`` makes each member when it is encoded."""
    operations = OPERATIONS_NOT_ASKED
    if request.body.include_authorized_operations and group.error_code is ErrorCode.none:
        operations = rights.access(request).operations(ResourceType.GROUP, group.group_id)
    return request.make(
        "DescribedGroup",
        **(asdict(group) | {"members": LazySequence(partial(member, request), group.members)}),
        authorized_operations=operations,
    )


def _member(request: Request, member: DescribedConsumerGroupMember) -> Message:
    shown = {
        "subscribed_topic_regex": member.subscribed_topic_regex or "",
        "assignment": _assignment(request, member.assignment),
        "target_assignment": _assignment(request, member.target_assignment),
    }
    return request.make("Member", **(asdict(member) | shown))


def _assignment(request: Request, topics: Sequence[DescribedTopicPartitions]) -> Message:
    parts = LazySequence(lambda topic: request.make("TopicPartitions", **asdict(topic)), topics)
    return request.make("Assignment", topic_partitions=parts)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
            versions=(0, 1),
            handle=partial(handle_heartbeat, parts),
            rights=(
                Right(Operation.READ, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
        ApiSpec(
            key=ApiKey.CONSUMER_GROUP_DESCRIBE,
            versions=(0, 1),
            handle=partial(handle_describe, parts),
            divisions=(
                Division(("group_ids",), ("groups",), repeated=Repeated.AT_MOST_TWICE, elements_max=1),
            ),
            rights=(
                Right(Operation.DESCRIBE, ResourceType.GROUP),
                Right(Operation.DESCRIBE, ResourceType.TOPIC),
            ),
        ),
    )
