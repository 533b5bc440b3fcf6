"""OffsetDelete: delete a group's offsets of topics that it is not subscribed to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nilometer.broker.api.access import access_of
from nilometer.broker.api.audited_changes import audit_own_change
from nilometer.broker.api.group_access import ask_group
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    OffsetDelete,
    OffsetDeletePartitionReply,
    OffsetDeleteReply,
    OffsetDeleteTopic,
    OffsetDeleteTopicReply,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    known: list[OffsetDeleteTopic] = []
    refused: list[OffsetDeleteTopicReply] = []
    access = access_of(services, request)
    for asked in request.body.topics:
        indexes = [partition.partition_index for partition in asked.partitions]
        if not access.allows(Operation.READ, ResourceType.TOPIC, asked.name, report=False):
            denied = ErrorCode.topic_authorization_failed
            refused.append(OffsetDeleteTopicReply(asked.name, _all(indexes, denied)))
            continue
        topic = services.image.topic(asked.name)
        found = [index for index in indexes if topic is not None and topic.partition(index) is not None]
        missing = [index for index in indexes if index not in found]
        if found:
            known.append(OffsetDeleteTopic(asked.name, tuple(found)))
        if missing:
            refused.append(
                OffsetDeleteTopicReply(asked.name, _all(missing, ErrorCode.unknown_topic_or_partition))
            )
    delete = OffsetDelete(request.body.group_id, tuple(known))
    return ask_group(
        services,
        request,
        Operation.DELETE,
        delete.group_id,
        delete,
        OffsetDeleteReply,
        lambda reply: _audit_and_respond(services, request, reply, refused),
    )


def _all(indexes: Sequence[int], error: ErrorCode) -> tuple[OffsetDeletePartitionReply, ...]:
    return tuple(OffsetDeletePartitionReply(index, error) for index in indexes)


def _audit_and_respond(
    services: Services, request: Request, reply: OffsetDeleteReply, refused: Sequence[OffsetDeleteTopicReply]
) -> Reply:
    for topic in reply.topics:
        deleted = [each.partition_index for each in topic.partitions if each.error_code is ErrorCode.none]
        if deleted:
            group = request.body.group_id
            audit_own_change(services, request, group_id=group, topic=topic.name, partitions=deleted)
    return _respond(request, reply, refused)


def _respond(request: Request, reply: OffsetDeleteReply, refused: Sequence[OffsetDeleteTopicReply]) -> Reply:
    """Make the response from the group's reply and the partitions that do not exist (``refused``).

    If the reply has an error for the whole group, the response has no topics.
    """
    gathered: dict[str, list[OffsetDeletePartitionReply]] = {}
    for topic in (*refused, *reply.topics) if reply.error_code is ErrorCode.none else ():
        gathered.setdefault(topic.name, []).extend(topic.partitions)
    return request.respond(
        error_code=reply.error_code,
        throttle_time_ms=0,
        topics=tuple(
            request.make(
                "OffsetDeleteResponseTopic",
                name=name,
                partitions=tuple(
                    request.make(
                        "OffsetDeleteResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=partition.error_code,
                    )
                    for partition in partitions
                ),
            )
            for name, partitions in gathered.items()
        ),
    )


API = ApiSpec(
    key=ApiKey.OFFSET_DELETE,
    versions=(0, 0),
    handle=handle,
    divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
    rights=(
        Right(Operation.DELETE, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)
