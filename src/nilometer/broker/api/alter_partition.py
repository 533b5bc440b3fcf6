"""AlterPartition: a leader requests a new ISR from the controller (KIP-497, KIP-841, KIP-903).

Only brokers send it.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.control import causes
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.isr_changes import (
    AlteredPartition,
    IsrChange,
    IsrMember,
    decide_alter_partitions,
)
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import RecoveryState
from nilometer.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
    topic_id_of,
    uuid_from_text,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message

_NO_TOPIC_ID = UUID(int=0)
Altered = tuple[AlteredPartition, ...]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body = request.body
    try:
        asked = [_asked(topic, part) for topic in body.topics for part in topic.partitions]
    except ValueError as error:  # an unknown recovery state
        return _refuse(services, request, ErrorCode.invalid_request, str(error))

    def decide(image: ClusterImage) -> Decision[Altered]:
        return decide_alter_partitions(image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch), asked)

    cause = causes.isr_request(body.broker_id)
    return on_controller(
        services, request, decide, _respond, _refuse, acting_broker=body.broker_id, cause=cause
    )


def _asked(topic: Message, part: Message) -> IsrChange:
    return IsrChange(
        partition=TopicIdPartition(topic_id_of(topic.topic_id or _NO_TOPIC_ID), part.partition_index),
        leader_epoch=LeaderEpoch(part.leader_epoch),
        partition_epoch=PartitionEpoch(part.partition_epoch),
        new_isr=tuple(
            IsrMember(BrokerId(member.broker_id), BrokerEpoch(member.broker_epoch))
            for member in part.new_isr_with_epochs
        ),
        recovery_state=RecoveryState(part.leader_recovery_state),
    )


def _respond(services: Services, request: Request, altered: Altered) -> Reply:
    topics: dict[str, list[Message]] = {}
    for one in altered:
        topics.setdefault(one.partition.topic_id, []).append(_partition(request, one))
    answers = tuple(
        request.make("TopicData", topic_id=uuid_from_text(topic_id), partitions=tuple(partitions))
        for topic_id, partitions in topics.items()
    )
    return request.respond(throttle_time_ms=0, error_code=ErrorCode.none, topics=answers)


def _partition(request: Request, one: AlteredPartition) -> Message:
    state = one.state
    return request.make(
        "PartitionData",
        partition_index=one.partition.partition,
        error_code=one.outcome.error,
        leader_id=-1 if state is None else state.leader,
        leader_epoch=-1 if state is None else state.leader_epoch,
        isr=() if state is None else state.isr,
        leader_recovery_state=0 if state is None else int(state.recovery_state),
        partition_epoch=-1 if state is None else state.partition_epoch,
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return request.respond(throttle_time_ms=0, error_code=error, topics=())


API = ApiSpec(
    key=ApiKey.ALTER_PARTITION,
    versions=(3, 3),
    handle=handle,
    between_brokers=True,
    rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
