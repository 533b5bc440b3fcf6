"""AlterPartitionReassignments (KIP-455): give partitions other replicas, or cancel a reassignment (replicas
null).
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import OK, Decision, Outcome
from nilometer.cluster.controller.reassignments import (
    ReassignedPartition,
    Reassignment,
    decide_alter_reassignments,
)
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message

Reassigned = tuple[ReassignedPartition, ...]


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    wanted = [
        Reassignment(topic.name, part.partition_index, part.replicas)
        for topic in request.body.topics
        for part in topic.partitions
    ]
    allow_factor_change = request.field("allow_replication_factor_change", True)

    def decide(image: ClusterImage) -> Decision[Reassigned]:
        return decide_alter_reassignments(image, wanted, allow_replication_factor_change=allow_factor_change)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER)


def _respond(services: Services, request: Request, reassigned: Reassigned, outcome: Outcome = OK) -> Reply:
    topics: dict[str, list[Message]] = {}
    for partition in reassigned:
        topics.setdefault(partition.topic, []).append(
            request.make(
                "ReassignablePartitionResponse",
                partition_index=partition.partition,
                error_code=partition.outcome.error,
                error_message=partition.outcome.message,
            )
        )
    responses = tuple(
        request.make("ReassignableTopicResponse", name=name, partitions=tuple(partitions))
        for name, partitions in topics.items()
    )
    return request.respond(
        throttle_time_ms=0, error_code=outcome.error, error_message=outcome.message, responses=responses
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    refused = tuple(
        ReassignedPartition(topic.name, part.partition_index, outcome)
        for topic in request.body.topics
        for part in topic.partitions
    )
    return _respond(services, request, refused, outcome)


API = ApiSpec(
    key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions=(0, 1),
    handle=handle,
    forwardable=True,
    divisions=(Division(("topics", "partitions"), ("responses", "partitions")),),
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
