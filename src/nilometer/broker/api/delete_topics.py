"""DeleteTopics, by name or (version 6) by id. The log folders are renamed at once, and removed after
``file.delete.delay.ms``."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import msgspec

from nilometer.broker.api.access import TOPIC_DENIED, access_of
from nilometer.broker.api.controller_requests import mutation_quota, on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.authorization.access import Access
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.topics import decide_delete_topics
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import topic_id_of
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


class _Asked(msgspec.Struct, frozen=True):
    name: str | None
    topic_id: UUID | None


class _Result(msgspec.Struct, frozen=True):
    name: str | None
    topic_id: UUID | None
    outcome: Outcome


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    asked = _asked(request)
    quota = mutation_quota(services, request, strict_from=5)

    def decide(image: ClusterImage) -> Decision[tuple[_Result, ...]]:
        if not services.config.boolean("delete.topic.enable"):
            disabled = Outcome(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false")
            return Decision((), tuple(_Result(topic.name, topic.topic_id, disabled) for topic in asked))
        times, access = Counter(asked), access_of(services, request)
        found = ((topic, _resolve(image, topic, times[topic])) for topic in times)
        results = {index: _authorized(access, *one) for index, one in enumerate(found)}
        known = {
            index: topic_id_of(found.topic_id)
            for index, found in results.items()
            if found.outcome.ok and found.topic_id
        }
        decision = decide_delete_topics(image, list(known.values()), quota.take)
        for index, (_, outcome) in zip(known, decision.reply, strict=True):
            results[index] = _Result(results[index].name, results[index].topic_id, outcome)
        return Decision(decision.units, tuple(results.values()))

    return on_controller(services, request, decide, _respond, _refuse, quota=quota)


def _asked(request: Request) -> list[_Asked]:
    if request.version >= 6:
        return [_Asked(topic.name, topic.topic_id) for topic in request.body.topics]
    return [_Asked(name, None) for name in request.body.topic_names]


def _resolve(image: ClusterImage, asked: _Asked, times: int) -> _Result:
    if (why := _why_invalid(asked, times)) is not None:
        return _Result(asked.name, asked.topic_id, Outcome(ErrorCode.invalid_request, why))
    if asked.name is not None:
        topic, unknown = image.topic(asked.name), ErrorCode.unknown_topic_or_partition
    else:
        topic = image.topic_by_uuid(asked.topic_id) if asked.topic_id else None
        unknown = ErrorCode.unknown_topic_id
    if topic is None:
        return _Result(asked.name, asked.topic_id, Outcome(unknown, "This server does not host this topic."))
    return _Result(topic.name, topic.uuid, Outcome())


def _authorized(access: Access, asked: _Asked, found: _Result) -> _Result:
    """Return ``found``, or the error for a client that may not delete the topic.

    A topic that it may not describe is, by name, as one that does not exist, and by id has no name.
    """
    if access.is_full or found.outcome.error is ErrorCode.invalid_request or found.name is None:
        return found
    if access.on_cluster(Operation.DELETE, report=False):
        return found
    describes = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, found.name)
    deletes = access.allows(Operation.DELETE, ResourceType.TOPIC, found.name)
    if deletes and (describes or asked.name is None):
        return found
    if describes and not found.outcome.ok:
        return found
    denied = Outcome(ErrorCode.topic_authorization_failed, TOPIC_DENIED)
    if asked.name is not None:
        return _Result(asked.name, None, denied)
    return _Result(found.name if describes else None, asked.topic_id, denied)


def _why_invalid(asked: _Asked, times: int) -> str | None:
    if times > 1:
        return "Duplicate topic."
    if asked.name is not None and asked.topic_id is not None:
        return "You may not specify both topic name and topic id."
    if asked.name is None and asked.topic_id is None:
        return "Neither topic name nor id were specified."
    return None


def _respond(services: Services, request: Request, results: tuple[_Result, ...]) -> Reply:
    return request.respond(
        throttle_time_ms=0, responses=tuple(_response(request, result) for result in results)
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    return _respond(
        services, request, tuple(_Result(topic.name, topic.topic_id, outcome) for topic in _asked(request))
    )


def _response(request: Request, result: _Result) -> Message:
    return request.make(
        "DeletableTopicResult",
        name=result.name,
        topic_id=result.topic_id,
        error_code=result.outcome.error,
        error_message=result.outcome.message,
    )


API = ApiSpec(
    key=ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    handle=handle,
    forwardable=True,
    divisions=(
        Division(("topics",), ("responses",), repeated=Repeated.TOGETHER),
        Division(("topic_names",), ("responses",), repeated=Repeated.TOGETHER),
    ),
    rights=(
        Right(Operation.DELETE, ResourceType.CLUSTER),
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
        Right(Operation.DELETE, ResourceType.TOPIC),
    ),
)
