"""ListPartitionReassignments: the reassignments in progress, of the named partitions or (null) of all."""

from __future__ import annotations

from nilometer.broker.api.access import CLUSTER_DENIED, access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.reassignments import list_reassignments
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.large_requests import Division, Repeated
from nilometer.wire.messages import Message


def handle(services: Services, request: Request) -> Reply:
    if not access_of(services, request).on_cluster(Operation.DESCRIBE):
        return _refuse(request, ErrorCode.cluster_authorization_failed, CLUSTER_DENIED)
    asked = request.body.topics
    wanted = (
        None
        if asked is None
        else [(topic.name, index) for topic in asked for index in topic.partition_indexes]
    )
    topics: dict[str, list[Message]] = {}
    for ongoing in list_reassignments(services.image, wanted):
        topics.setdefault(ongoing.topic, []).append(
            request.make(
                "OngoingPartitionReassignment",
                partition_index=ongoing.partition,
                replicas=ongoing.state.replicas,
                adding_replicas=ongoing.state.adding,
                removing_replicas=ongoing.state.removing,
            )
        )
    listed = tuple(
        request.make("OngoingTopicReassignment", name=name, partitions=tuple(partitions))
        for name, partitions in topics.items()
    )
    return request.respond(throttle_time_ms=0, error_code=ErrorCode.none, error_message=None, topics=listed)


def _refuse(request: Request, error: ErrorCode, message: str) -> Reply:
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
    return request.respond(throttle_time_ms=0, error_code=error, error_message=message, topics=topics)


API = ApiSpec(
    key=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions=(0, 0),
    handle=handle,
    divisions=(
        Division(("topics", "partition_indexes"), ("topics", "partitions"), repeated=Repeated.AT_MOST_TWICE),
    ),
    rights=(Right(Operation.DESCRIBE, ResourceType.CLUSTER),),
)
