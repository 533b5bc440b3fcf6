"""DeleteRecords: move a partition's log start offset up; -1 means up to the high watermark.

An offset above the high watermark is OFFSET_OUT_OF_RANGE. The response has the partition's low watermark and
is sent once every live replica has moved its log start offset; a partition where that takes longer than
``timeout_ms`` gets REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from nilometer.broker.api.access import access_of
from nilometer.broker.api.audited_changes import audit_own_change
from nilometer.broker.api.delayed_reply import DelayedReply
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.replicas.delayed_delete_records import DeleteOutcome
from nilometer.broker.replicas.delayed_request import DelayedRequest
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.states import INTERNAL_TOPICS
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import milliseconds


class _TopicOutcomes(msgspec.Struct, frozen=True):
    name: str
    partitions: Sequence[DeleteOutcome]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    access, topics = access_of(services, request), list[_TopicOutcomes]()
    waiting = DelayedReply(lambda: _respond(request, topics))
    for topic in request.body.topics:
        asked = {part.partition_index: part.offset for part in topic.partitions}
        if not access.allows(Operation.DELETE, ResourceType.TOPIC, topic.name):
            denied = [DeleteOutcome(index) for index in asked]
            for outcome in denied:
                outcome.fail(ErrorCode.topic_authorization_failed)
            topics.append(_TopicOutcomes(topic.name, denied))
            continue
        audit_own_change(
            services, request, topic=topic.name, offsets={str(index): asked[index] for index in asked}
        )
        outcomes = [
            _delete(services, topic.name, offset, DeleteOutcome(index), waiting.delayed)
            for index, offset in asked.items()
        ]
        topics.append(_TopicOutcomes(topic.name, outcomes))
    return waiting.reply(max(milliseconds(request.body.timeout), 0))


def _delete(
    services: Services, topic: str, offset: int, outcome: DeleteOutcome, delayed: DelayedRequest
) -> DeleteOutcome:
    try:
        if topic in INTERNAL_TOPICS:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"Cannot delete records of {topic}")
        services.replicas.partition(topic, outcome.index).delete_records(offset, outcome, delayed)
    except KafkaError as error:
        outcome.fail(error.code)
    return outcome


def _respond(request: Request, topics: Sequence[_TopicOutcomes]) -> Reply:
    results = tuple(
        request.make(
            "DeleteRecordsTopicResult",
            name=topic.name,
            partitions=tuple(
                request.make(
                    "DeleteRecordsPartitionResult",
                    partition_index=outcome.index,
                    low_watermark=outcome.low_watermark,
                    error_code=outcome.error,
                )
                for outcome in topic.partitions
            ),
        )
        for topic in topics
    )
    return request.respond(throttle_time_ms=0, topics=results)


API = ApiSpec(
    key=ApiKey.DELETE_RECORDS,
    versions=(0, 2),
    handle=handle,
    divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
    rights=(Right(Operation.DELETE, ResourceType.TOPIC),),
)
