"""OffsetForLeaderEpoch: the end offset of an epoch in the leader's log, so that consumers and followers can
find where they diverge from it (KIP-101, KIP-320).
"""

from __future__ import annotations

from nilometer.broker.api.access import access_of
from nilometer.broker.api.broker_access import why_not_broker
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.large_requests import Division
from nilometer.wire.messages import Message

CONSUMER = -1


def handle(services: Services, request: Request) -> Reply:
    replica_id: int = request.field("replica_id", CONSUMER)
    refused = replica_id >= 0 and why_not_broker(services, request, replica_id) is not None
    access, topics = access_of(services, request), list[object]()
    sees_all = access.on_cluster(Operation.CLUSTER_ACTION, report=False)
    for topic in request.body.topics:
        error = ErrorCode.cluster_authorization_failed if refused else ErrorCode.none
        if not refused and not sees_all:
            may = access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            error = ErrorCode.none if may else ErrorCode.topic_authorization_failed
        ends = tuple(
            _refuse(request, asked, error) if error else _end_offset(services, request, topic.topic, asked)
            for asked in topic.partitions
        )
        topics.append(request.make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=ends))
    return request.respond(throttle_time_ms=0, topics=tuple(topics))


def _refuse(request: Request, asked: Message, error: ErrorCode) -> object:
    return request.make(
        "EpochEndOffset",
        error_code=error,
        partition=asked.partition,
        leader_epoch=-1,
        end_offset=-1,
    )


def _end_offset(services: Services, request: Request, name: str, asked: Message) -> object:
    code, epoch, end_offset = ErrorCode.none, -1, -1
    index: int = asked.partition
    try:
        partition = services.replicas.partition(name, index)
        code, end = partition.end_offset_for_leader_epoch(
            getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH),
            asked.leader_epoch,
        )
        epoch, end_offset = end.epoch, end.end_offset
    except KafkaError as error:
        code = error.code
    return request.make(
        "EpochEndOffset", error_code=code, partition=index, leader_epoch=epoch, end_offset=end_offset
    )


API = ApiSpec(
    key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions=(2, 4),
    handle=handle,
    divisions=(Division(("topics", "partitions"), ("topics", "partitions")),),
    rights=(
        Right(Operation.DESCRIBE, ResourceType.TOPIC),
        Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
)
