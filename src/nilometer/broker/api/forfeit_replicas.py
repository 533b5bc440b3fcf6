"""ForfeitReplicas (Nilometer's own): a broker leaves the ISR and the ELR of partitions whose records are
damaged on its disk, or (``offline``) whose log it cannot use any more.

Only brokers send it.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.control import causes
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.controller.isr_changes import ForfeitedReplica, decide_forfeit_replicas
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerEpoch, BrokerId, TopicId, TopicIdPartition
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode

Forfeited = tuple[ForfeitedReplica, ...]


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body: wire.ForfeitReplicasRequest = request.body
    asked = [TopicIdPartition(TopicId(one.topic_id), one.partition) for one in body.replicas]

    def decide(image: ClusterImage) -> Decision[Forfeited]:
        return decide_forfeit_replicas(
            image,
            BrokerId(body.broker_id),
            BrokerEpoch(body.broker_epoch),
            asked,
            offline=body.offline,
        )

    cause = causes.forfeited_replicas(body.broker_id, offline=body.offline)
    return on_controller(
        services, request, decide, _respond, _refuse, acting_broker=body.broker_id, cause=cause
    )


def _respond(services: Services, request: Request, forfeited: Forfeited) -> Reply:
    outcomes = tuple(
        wire.ForfeitOutcome(
            topic_id=one.partition.topic_id,
            partition=one.partition.partition,
            error_code=int(one.outcome.error),
            message=one.outcome.message or "",
        )
        for one in forfeited
    )
    return request.respond(error_code=int(ErrorCode.none), outcomes=outcomes)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return request.respond(error_code=int(error), message=message)


API = ApiSpec(
    key=wire.FORFEIT_REPLICAS,
    versions=(0, 0),
    handle=handle,
    between_brokers=True,
    rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
