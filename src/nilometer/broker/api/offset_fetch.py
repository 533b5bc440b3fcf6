"""OffsetFetch: the committed offsets of groups.

Versions: 1 repeats an error of the group at each partition; 2 may request all committed offsets; 7 stable
offsets only; 8 many groups; 9 has member epochs (KIP-848); 10 topics by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

from nilometer.broker.api.access import access_of
from nilometer.broker.api.group_access import ask_groups
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.groups.requests import (
    OffsetFetch,
    OffsetFetchPartitionReply,
    OffsetFetchReply,
    OffsetFetchTopic,
    OffsetFetchTopicReply,
)
from nilometer.groups.requests import Reply as GroupReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message

FIRST_WITH_GROUP_ERROR = 2
FIRST_WITH_MANY_GROUPS = 8
FIRST_BY_ID = 10

_NO_ID = UUID(int=0)
DENIED = ErrorCode.topic_authorization_failed


class _Asked(NamedTuple):
    fetch: OffsetFetch
    unknown: tuple[OffsetFetchTopicReply, ...]
    """The response's entries for topics that do not exist for this client."""


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    groups: Sequence[Message] = body.groups if request.version >= FIRST_WITH_MANY_GROUPS else (body,)
    asked = [_asked(services, request, group) for group in groups]
    return ask_groups(
        services,
        request,
        Operation.DESCRIBE,
        [(one.fetch.group_id, one.fetch) for one in asked],
        lambda replies: _respond(services, request, asked, replies),
    )


def _asked(services: Services, request: Request, group: Message) -> _Asked:
    topics: tuple[OffsetFetchTopic, ...] | None = None
    unknown: tuple[OffsetFetchTopicReply, ...] = ()
    if group.topics is not None and request.version >= FIRST_BY_ID:
        topics, unknown = _topics_by_id(services, request, group.topics)
    elif group.topics is not None:
        topics, unknown = _topics_by_name(services, request, group.topics)
    fetch = OffsetFetch(
        group_id=group.group_id,
        topics=topics,
        member_id=getattr(group, "member_id", None),
        member_epoch=getattr(group, "member_epoch", -1),
        require_stable=request.field("require_stable", False),
    )
    return _Asked(fetch, unknown)


def _topics_by_name(
    services: Services, request: Request, asked: Sequence[Message]
) -> tuple[tuple[OffsetFetchTopic, ...], tuple[OffsetFetchTopicReply, ...]]:
    access = access_of(services, request)
    may = [access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name) for topic in asked]
    known = tuple(
        OffsetFetchTopic(topic.name, tuple(topic.partition_indexes))
        for allowed, topic in zip(may, asked, strict=True)
        if allowed
    )
    denied = tuple(
        OffsetFetchTopicReply(topic.name, _all(topic.partition_indexes, DENIED))
        for allowed, topic in zip(may, asked, strict=True)
        if not allowed
    )
    return known, denied


def _topics_by_id(
    services: Services, request: Request, asked: Sequence[Message]
) -> tuple[tuple[OffsetFetchTopic, ...], tuple[OffsetFetchTopicReply, ...]]:
    known: list[OffsetFetchTopic] = []
    unknown: list[OffsetFetchTopicReply] = []
    access = access_of(services, request)
    for each in asked:
        topic_id: UUID = each.topic_id or _NO_ID
        indexes = tuple(each.partition_indexes)
        topic = services.image.topic_by_uuid(topic_id)
        if topic is not None and not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            unknown.append(OffsetFetchTopicReply("", _all(indexes, DENIED), topic_id))
        elif topic is not None:
            known.append(OffsetFetchTopic(topic.name, indexes, topic_id))
        else:
            unknown.append(OffsetFetchTopicReply("", _all(indexes, ErrorCode.unknown_topic_id), topic_id))
    return tuple(known), tuple(unknown)


def _all(indexes: Sequence[int], error: ErrorCode) -> tuple[OffsetFetchPartitionReply, ...]:
    return tuple(OffsetFetchPartitionReply(index, error_code=error) for index in indexes)


def _respond(
    services: Services, request: Request, asked: Sequence[_Asked], replies: Sequence[GroupReply]
) -> Reply:
    answers: list[OffsetFetchReply] = []
    for one, reply in zip(asked, replies, strict=True):
        assert isinstance(reply, OffsetFetchReply)
        answers.append(_complete(services, request, one, reply))
    if request.version >= FIRST_WITH_MANY_GROUPS:
        return request.respond(
            throttle_time_ms=0,
            groups=tuple(
                request.make(
                    "OffsetFetchResponseGroup",
                    group_id=answer.group_id,
                    error_code=answer.error_code,
                    topics=LazySequence(partial(_topic_of_group, request), answer.topics),
                )
                for answer in answers
            ),
        )
    (answer,) = answers
    return request.respond(
        throttle_time_ms=0,
        error_code=answer.error_code,
        topics=LazySequence(partial(_topic_of_only_group, request), answer.topics),
    )


def _complete(
    services: Services, request: Request, asked: _Asked, reply: OffsetFetchReply
) -> OffsetFetchReply:
    """Adapt the group's reply to the request's version: where errors are, and whether topics have ids."""
    if reply.error_code is not ErrorCode.none:
        if request.version >= FIRST_WITH_GROUP_ERROR:
            return reply
        topics = tuple(
            OffsetFetchTopicReply(topic.name, _all(topic.partition_indexes, reply.error_code))
            for topic in asked.fetch.topics or ()
        )
        topics += tuple(
            OffsetFetchTopicReply(
                topic.name, _all([each.partition_index for each in topic.partitions], reply.error_code)
            )
            for topic in asked.unknown
        )
        return OffsetFetchReply(reply.group_id, reply.error_code, topics)
    shown = reply.topics
    access = access_of(services, request)
    if asked.fetch.topics is None and not access.is_full:
        names = [topic.name for topic in shown]
        described = access.allowed(Operation.DESCRIBE, ResourceType.TOPIC, names)
        shown = tuple(topic for topic in shown if topic.name in described)
    if request.version < FIRST_BY_ID:
        return OffsetFetchReply(reply.group_id, topics=(*shown, *asked.unknown))
    named = (_with_id(services, topic) for topic in shown)
    topics = tuple(topic for topic in named if topic is not None)
    return OffsetFetchReply(reply.group_id, topics=(*asked.unknown, *topics))


def _with_id(services: Services, reply: OffsetFetchTopicReply) -> OffsetFetchTopicReply | None:
    """Add the topic's current id to a reply that has only its name; None if the topic does not exist, since a
    response by ids cannot name it."""
    if reply.topic_id is not None:
        return reply
    topic = services.image.topic(reply.name)
    return None if topic is None else OffsetFetchTopicReply(reply.name, reply.partitions, topic.uuid)


def _topic_of_group(request: Request, topic: OffsetFetchTopicReply) -> Message:
    return request.make(
        "OffsetFetchResponseTopics",
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=_partitions(request, "OffsetFetchResponsePartitions", topic),
    )


def _topic_of_only_group(request: Request, topic: OffsetFetchTopicReply) -> Message:
    return request.make(
        "OffsetFetchResponseTopic",
        name=topic.name,
        partitions=_partitions(request, "OffsetFetchResponsePartition", topic),
    )


def _partitions(request: Request, kind: str, topic: OffsetFetchTopicReply) -> Sequence[Message]:
    return LazySequence(partial(_partition, request, kind), topic.partitions)


def _partition(request: Request, kind: str, partition: OffsetFetchPartitionReply) -> Message:
    return request.make(
        kind,
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )


API = ApiSpec(
    key=ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    handle=handle,
    divisions=(
        Division(
            ("groups", "topics", "partition_indexes"),
            ("groups", "topics", "partitions"),
            repeated=Repeated.AT_MOST_TWICE,
        ),
        Division(("topics", "partition_indexes"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE),
    ),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.GROUP),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
    ),
)
