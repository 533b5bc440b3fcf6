"""AllocateProducerIds: a broker requests a block of producer ids from the controller."""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.control import causes
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    body = request.body

    def decide(image: ClusterImage) -> Decision[ProducerIdBlock]:
        return decide_allocate_producer_ids(image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch))

    cause = causes.producer_ids(body.broker_id)
    return on_controller(
        services, request, decide, _respond, _refuse, acting_broker=body.broker_id, cause=cause
    )


def _respond(services: Services, request: Request, block: ProducerIdBlock) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=block.outcome.error,
        producer_id_start=block.first,
        producer_id_len=block.count,
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond(services, request, ProducerIdBlock(Outcome(error, message)))


API = ApiSpec(
    key=ApiKey.ALLOCATE_PRODUCER_IDS,
    versions=(0, 0),
    handle=handle,
    between_brokers=True,
    rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
