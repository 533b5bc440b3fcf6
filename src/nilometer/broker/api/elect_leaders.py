"""ElectLeaders: elect the preferred replica (election type 0), or any live replica even if it is not in sync
(1, unclean)."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.elections import ElectedPartition, decide_elect_leaders
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message

Elected = tuple[ElectedPartition, ...]


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    asked = request.body.topic_partitions
    partitions = (
        None if asked is None else [(topic.topic, index) for topic in asked for index in topic.partitions]
    )
    kind = request.field("election_type", 0)

    def decide(image: ClusterImage) -> Decision[Elected]:
        return decide_elect_leaders(image, kind, partitions)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER)


def _respond(
    services: Services, request: Request, elected: Elected, error: ErrorCode = ErrorCode.none
) -> Reply:
    topics: dict[str, list[Message]] = {}
    for partition in elected:
        topics.setdefault(partition.topic, []).append(
            request.make(
                "PartitionResult",
                partition_id=partition.partition,
                error_code=partition.outcome.error,
                error_message=partition.outcome.message,
            )
        )
    results = tuple(
        request.make("ReplicaElectionResult", topic=name, partition_result=tuple(partitions))
        for name, partitions in topics.items()
    )
    return request.respond(throttle_time_ms=0, error_code=error, replica_election_results=results)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    outcome = Outcome(error, message)
    elected = tuple(
        ElectedPartition(topic.topic, index, outcome)
        for topic in request.body.topic_partitions or ()
        for index in topic.partitions
    )
    return _respond(services, request, elected, error)


API = ApiSpec(
    key=ApiKey.ELECT_LEADERS,
    versions=(0, 2),
    handle=handle,
    forwardable=True,
    divisions=(
        Division(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),
    ),
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
