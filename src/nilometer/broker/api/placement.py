"""An administrator moves partitions: AlterPartitionReassignments and ListPartitionReassignments (KIP-455),
and ElectLeaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import msgspec

from nilometer.broker.api.access import CLUSTER_DENIED, Rights
from nilometer.broker.api.controller_requests import ControllerRequests
from nilometer.broker.api.listings import Listings
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.responses import Response
from nilometer.broker.turns import LongWork
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import OK, Outcome, Steps
from nilometer.cluster.controller.reassignments import (
    ElectedPartition,
    OngoingReassignment,
    ReassignedPartition,
    Reassignment,
    decide_alter_reassignments,
    decide_elect_leaders,
    list_reassignments,
)
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message
from nilometer.wire.encoder import LazySequence
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated


class Parts(msgspec.Struct, frozen=True):
    listings: Listings
    metadata: MetadataLog
    rights: Rights
    controller_requests: ControllerRequests


# AlterPartitionReassignments (KIP-455): give partitions other replicas, or cancel a reassignment (replicas
# null).

Reassigned = tuple[ReassignedPartition, ...]


def handle_alter_reassignments(parts: Parts, request: Request) -> asyncio.Future[Response]:
    wanted = [
        Reassignment(topic.name, part.partition_index, part.replicas)
        for topic in request.body.topics
        for part in topic.partitions
    ]
    allow_factor_change = request.field("allow_replication_factor_change", True)

    def decide(image: ClusterImage) -> Steps[Reassigned]:
        return decide_alter_reassignments.steps(
            image, wanted, allow_replication_factor_change=allow_factor_change
        )

    return parts.controller_requests.decide(
        request,
        decide,
        _respond_alter_reassignments,
        _refuse_alter_reassignments,
        needs=Operation.ALTER,
    )


def _respond_alter_reassignments(request: Request, reassigned: Reassigned, outcome: Outcome = OK) -> Response:
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
    return request.respond(error_code=outcome.error, error_message=outcome.message, responses=responses)


def _refuse_alter_reassignments(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    refused = tuple(
        ReassignedPartition(topic.name, part.partition_index, outcome)
        for topic in request.body.topics
        for part in topic.partitions
    )
    return _respond_alter_reassignments(request, refused, outcome)


# ListPartitionReassignments: the reassignments in progress, of the named partitions or (null) of all.


def handle_list_reassignments(parts: Parts, request: Request) -> Response | asyncio.Future[Response]:
    if not parts.rights.access(request).on_cluster(Operation.DESCRIBE):
        return _refuse_list_reassignments(request, ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
    asked = request.body.topics
    if asked is None:
        return parts.listings.answer(request, partial(_list_all_reassignments, parts))
    wanted = [(topic.name, index) for topic in asked for index in topic.partition_indexes]
    return _respond_reassignments(request, list_reassignments(parts.metadata.image, wanted))


async def _list_all_reassignments(parts: Parts, request: Request, work: LongWork) -> Response:
    found: list[OngoingReassignment] = []
    for one in list_reassignments(parts.metadata.image):
        found.append(one)
        await work.step(1)
    return _respond_reassignments(request, found)


def _respond_reassignments(request: Request, found: Iterable[OngoingReassignment]) -> Response:
    topics: dict[str, list[OngoingReassignment]] = {}
    for ongoing in found:
        topics.setdefault(ongoing.topic, []).append(ongoing)
    listed = tuple(
        request.make(
            "OngoingTopicReassignment",
            name=name,
            partitions=LazySequence(partial(_ongoing, request), partitions),
        )
        for name, partitions in topics.items()
    )
    return request.respond(error_message=None, topics=listed)


def _ongoing(request: Request, ongoing: OngoingReassignment) -> Message:
    return request.make(
        "OngoingPartitionReassignment",
        partition_index=ongoing.partition,
        replicas=ongoing.state.replicas,
        adding_replicas=ongoing.state.adding,
        removing_replicas=ongoing.state.removing,
    )


def _refuse_list_reassignments(request: Request, error: ErrorCode, message: str) -> Response:
    topics = tuple(
        request.make(
            "OngoingTopicReassignment",
            name=topic.name,
            partitions=tuple(
                request.make(
                    "OngoingPartitionReassignment",
                    partition_index=index,
                    replicas=(),
                    adding_replicas=(),
                    removing_replicas=(),
                )
                for index in topic.partition_indexes
            ),
        )
        for topic in request.body.topics or ()
    )
    return request.respond(error_code=error, error_message=message, topics=topics)


# ElectLeaders: elect the preferred replica (election type 0), or any live replica even if it is not in sync
# (1, unclean).

Elected = tuple[ElectedPartition, ...]


def handle_elect_leaders(parts: Parts, request: Request) -> asyncio.Future[Response]:
    asked = request.body.topic_partitions
    partitions = (
        None if asked is None else [(topic.topic, index) for topic in asked for index in topic.partitions]
    )
    kind = request.field("election_type", 0)

    def decide(image: ClusterImage) -> Steps[Elected]:
        return decide_elect_leaders.steps(image, kind, partitions)

    return parts.controller_requests.decide(
        request, decide, _respond_elect_leaders, _refuse_elect_leaders, needs=Operation.ALTER
    )


def _respond_elect_leaders(request: Request, elected: Elected, error: ErrorCode = ErrorCode.none) -> Response:
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
    return request.respond(error_code=error, replica_election_results=results)


def _refuse_elect_leaders(request: Request, error: ErrorCode, message: str) -> Response:
    outcome = Outcome(error, message)
    elected = tuple(
        ElectedPartition(topic.topic, index, outcome)
        for topic in request.body.topic_partitions or ()
        for index in topic.partitions
    )
    return _respond_elect_leaders(request, elected, error)


def apis(parts: Parts) -> tuple[ApiSpec, ...]:
    return (
        ApiSpec(
            key=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            versions=(0, 1),
            handle=partial(handle_alter_reassignments, parts),
            forwardable=True,
            divisions=(Division(("topics", "partitions"), ("responses", "partitions")),),
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
            versions=(0, 0),
            handle=partial(handle_list_reassignments, parts),
            divisions=(
                Division(
                    ("topics", "partition_indexes"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE
                ),
            ),
            rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
        ),
        ApiSpec(
            key=ApiKey.ELECT_LEADERS,
            versions=(0, 2),
            handle=partial(handle_elect_leaders, parts),
            forwardable=True,
            divisions=(
                Division(
                    ("topic_partitions", "partitions"), ("replica_election_results", "partition_result")
                ),
            ),
            rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
        ),
    )
