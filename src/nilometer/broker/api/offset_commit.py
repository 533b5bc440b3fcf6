"""OffsetCommit: commits a group's offsets. The response is sent when all in-sync replicas have them.

Versions: 2 to 4 may set a retention time; 6 has leader epochs; 7 static members; 9 member epochs (KIP-848);
10 topics by id. Topics and partitions that do not exist are rejected here, before the group decides. A
connection may have several commits in flight: they are decided in order, and wait for the replicas together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import Topic
from nilometer.groups.requests import (
    OffsetCommit,
    OffsetCommitPartition,
    OffsetCommitPartitionReply,
    OffsetCommitReply,
    OffsetCommitTopic,
    OffsetCommitTopicReply,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message, milliseconds

FIRST_WITH_MEMBER_EPOCHS = 9
FIRST_BY_ID = 10


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    known: list[OffsetCommitTopic] = []
    refused: list[OffsetCommitTopicReply] = []
    if not access_of(services, request).allows(Operation.READ, ResourceType.GROUP, body.group_id):
        return _respond(request, _deny(request))
    for asked in body.topics:
        _sort_by_outcome(services, request, asked, known, refused)
    if not known:
        return _respond(request, refused)
    retention_time = request.field("retention_time")
    commit = OffsetCommit(
        group_id=body.group_id,
        topics=tuple(known),
        generation_id_or_member_epoch=_generation(body),
        member_id=body.member_id,
        group_instance_id=request.field("group_instance_id"),
        retention_time_ms=-1 if retention_time is None else milliseconds(retention_time),
        knows_member_epochs=request.version >= FIRST_WITH_MEMBER_EPOCHS,
    )
    return services.groups.ask_one(
        commit.group_id,
        commit,
        OffsetCommitReply,
        lambda reply: _respond(request, [*refused, *reply.topics]),
    )


def _deny(request: Request) -> list[OffsetCommitTopicReply]:
    denied = ErrorCode.group_authorization_failed
    return [
        OffsetCommitTopicReply(
            getattr(topic, "name", None) or "",
            tuple(OffsetCommitPartitionReply(each.partition_index, denied) for each in topic.partitions),
            getattr(topic, "topic_id", None),
        )
        for topic in request.body.topics
    ]


def _generation(body: Message) -> int:
    return body.generation_id_or_member_epoch


def _sort_by_outcome(
    services: Services,
    request: Request,
    asked: Message,
    known: list[OffsetCommitTopic],
    refused: list[OffsetCommitTopicReply],
) -> None:
    """Add the partitions of topic ``asked`` that exist to ``known``, and an error for each other one to
    ``refused``."""
    topic, name, topic_id, unknown = _find(services, request, asked)
    found: list[OffsetCommitPartition] = []
    missing: list[OffsetCommitPartitionReply] = []
    for partition in asked.partitions:
        index = partition.partition_index
        if topic is None:
            missing.append(OffsetCommitPartitionReply(index, unknown))
        elif topic.partition(index) is None:
            missing.append(OffsetCommitPartitionReply(index, ErrorCode.unknown_topic_or_partition))
        else:
            found.append(
                OffsetCommitPartition(
                    index,
                    partition.committed_offset,
                    getattr(partition, "committed_leader_epoch", -1),
                    partition.committed_metadata,
                )
            )
    if found:
        known.append(OffsetCommitTopic(name, tuple(found), topic_id))
    if missing:
        refused.append(OffsetCommitTopicReply(name, tuple(missing), topic_id))


def _find(
    services: Services, request: Request, asked: Message
) -> tuple[Topic | None, str, UUID | None, ErrorCode]:
    """Return the topic, its name and id as far as they are known, and the error to return if the topic does
    not exist for this client."""
    if request.version >= FIRST_BY_ID:
        topic = services.image.topic_by_uuid(asked.topic_id) if asked.topic_id is not None else None
        name = "" if topic is None else topic.name
        if topic is not None and not _may_read(services, request, name):
            return None, "", asked.topic_id, ErrorCode.topic_authorization_failed
        return topic, name, asked.topic_id, ErrorCode.unknown_topic_id
    if not _may_read(services, request, asked.name):
        return None, asked.name, None, ErrorCode.topic_authorization_failed
    topic = services.image.topic(asked.name)
    return topic, asked.name, None if topic is None else topic.uuid, ErrorCode.unknown_topic_or_partition


def _may_read(services: Services, request: Request, topic: str) -> bool:
    return access_of(services, request).allows(Operation.READ, ResourceType.TOPIC, topic)


def _respond(request: Request, topics: Sequence[OffsetCommitTopicReply]) -> Reply:
    gathered: dict[tuple[str, UUID | None], list[OffsetCommitPartitionReply]] = {}
    for topic in topics:
        gathered.setdefault((topic.name, topic.topic_id), []).extend(topic.partitions)
    return request.respond(
        throttle_time_ms=0,
        topics=tuple(
            request.make(
                "OffsetCommitResponseTopic",
                name=name,
                topic_id=topic_id,
                partitions=tuple(
                    request.make(
                        "OffsetCommitResponsePartition",
                        partition_index=partition.partition_index,
                        error_code=partition.error_code,
                    )
                    for partition in partitions
                ),
            )
            for (name, topic_id), partitions in gathered.items()
        ),
    )


API = ApiSpec(
    key=ApiKey.OFFSET_COMMIT,
    versions=(2, 10),
    handle=handle,
    pipelined=True,
    divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
    rights=(
        Right(Operation.READ, ResourceType.GROUP),
        Right(Operation.READ, ResourceType.TOPIC),
    ),
)
