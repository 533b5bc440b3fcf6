"""OffsetForLeaderEpoch: the end offset of an epoch in the leader's log, so that consumers and followers can
find where they diverge from it (KIP-101, KIP-320).
"""

from __future__ import annotations

from nilometer.broker.api.broker_access import why_not_broker
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.identifiers import NO_LEADER_EPOCH
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

CONSUMER = -1


def handle(services: Services, request: Request) -> Reply:
    replica_id: int = request.field("replica_id", CONSUMER)
    refused = replica_id >= 0 and why_not_broker(services, request, replica_id) is not None
    topics: list[object] = []
    for topic in request.body.topics:
        ends = tuple(
            _refuse(request, asked) if refused else _end_offset(services, request, topic.topic, asked)
            for asked in topic.partitions
        )
        topics.append(request.make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=ends))
    return request.respond(throttle_time_ms=0, topics=tuple(topics))


def _refuse(request: Request, asked: Message) -> object:
    return request.make(
        "EpochEndOffset",
        error_code=ErrorCode.cluster_authorization_failed,
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


API = ApiSpec(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, versions=(2, 4), handle=handle)
