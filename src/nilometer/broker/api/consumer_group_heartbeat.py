"""ConsumerGroupHeartbeat (KIP-848): with it a member joins, stays in and leaves a consumer group.

Versions: 1 adds subscription by regular expression, and member ids chosen by the members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from nilometer.broker.api.access import access_of
from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.group_client import client_host, client_id
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import ConsumerGroupHeartbeat, ConsumerGroupHeartbeatReply, TopicPartitions
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, milliseconds

FIRST_WITH_OWN_MEMBER_IDS = 1


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if not services.groups.serves_consumer_groups:
        return _respond(services, request, ConsumerGroupHeartbeatReply(ErrorCode.unsupported_version))
    body = request.body
    names: Sequence[str] | None = body.subscribed_topic_names
    access = access_of(services, request)
    may_join = access.is_full or access.allows(Operation.READ, ResourceType.GROUP, body.group_id)
    if may_join and access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names or ()) != set(names or ()):
        return _respond(services, request, ConsumerGroupHeartbeatReply(ErrorCode.topic_authorization_failed))
    owned: Sequence[Message] | None = body.topic_partitions
    asked = ConsumerGroupHeartbeat(
        group_id=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=request.field("subscribed_topic_regex"),
        server_assignor=body.server_assignor,
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
    return ask_group(
        services,
        request,
        Operation.READ,
        asked.group_id,
        asked,
        ConsumerGroupHeartbeatReply,
        lambda reply: _respond(services, request, reply),
    )


def _respond(services: Services, request: Request, reply: ConsumerGroupHeartbeatReply) -> Reply:
    assignment = None
    if reply.assignment is not None:
        parts = [each for each in reply.assignment if _may_describe(services, request, each.topic_id)]
        # A member that has its assignment would take a repeat without some of it for a revocation.
        if len(parts) == len(reply.assignment) or not reply.is_repeat:
            assignment = request.make(
                "Assignment",
                topic_partitions=tuple(
                    request.make("TopicPartitions", topic_id=each.topic_id, partitions=each.partitions)
                    for each in parts
                ),
            )
    return request.respond(
        throttle_time_ms=0,
        error_code=reply.error_code,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


def _may_describe(services: Services, request: Request, topic_id: UUID) -> bool:
    """Return whether a member may know that it has the topic: a regular expression selects also others."""
    access = access_of(services, request)
    topic = None if access.is_full else services.image.topic_by_uuid(topic_id)
    return topic is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name, report=False)


API = ApiSpec(
    key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    handle=handle,
    rights=(
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
