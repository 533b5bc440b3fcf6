"""CreatePartitions: add partitions to topics; their number never falls."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.access import TOPIC_DENIED, access_of
from nilometer.broker.api.controller_requests import mutation_quota, on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.topics import MorePartitions, decide_create_partitions
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated

Outcomes = tuple[tuple[str, Outcome], ...]


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    wanted = [
        MorePartitions(
            name=topic.name,
            count=topic.count,
            assignments=None
            if topic.assignments is None
            else [item.broker_ids for item in topic.assignments],
        )
        for topic in request.body.topics
    ]

    quota = mutation_quota(services, request, strict_from=3)

    def decide(image: ClusterImage) -> Decision[Outcomes]:
        access, names = access_of(services, request), [topic.name for topic in wanted]
        alterable = access.allowed(Operation.ALTER, ResourceType.TOPIC, names)
        allowed = [topic for topic in wanted if topic.name in alterable]
        decision = decide_create_partitions(
            image,
            allowed,
            chance=services.runtime.entropy,
            validate_only=request.body.validate_only,
            take_quota=quota.take,
        )
        denied = Outcome(ErrorCode.topic_authorization_failed, TOPIC_DENIED)
        refused = ((name, denied) for name in names if name not in alterable)
        return Decision(decision.units, (*decision.reply, *refused))

    return on_controller(services, request, decide, _respond, _refuse, quota=quota)


def _respond(services: Services, request: Request, outcomes: Outcomes) -> Reply:
    results = tuple(
        request.make(
            "CreatePartitionsTopicResult", name=name, error_code=outcome.error, error_message=outcome.message
        )
        for name, outcome in dict(outcomes).items()  # a topic named twice is rejected, with one result
    )
    return request.respond(throttle_time_ms=0, results=results)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    return _respond(services, request, tuple((topic.name, outcome) for topic in request.body.topics))


API = ApiSpec(
    key=ApiKey.CREATE_PARTITIONS,
    versions=(0, 3),
    handle=handle,
    forwardable=True,
    divisions=(Division(("topics",), ("results",), repeated=Repeated.TOGETHER, key=("name",)),),
    rights=(Right(Operation.ALTER, ResourceType.TOPIC),),
)
