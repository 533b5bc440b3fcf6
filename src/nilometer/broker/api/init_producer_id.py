"""InitProducerId: returns a producer id and epoch for an idempotent or a transactional producer.

A request without a transactional id gets a new producer id, even if it names its current id and epoch
(version 3): without a transactional id the previous user of a producer id cannot be fenced. A request with
one is decided by its transaction coordinator. Version 4 knows PRODUCER_FENCED.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.api.transaction_errors import error_for
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.coordination.store import CoordinationError
from nilometer.transactions.requests import InitProducerId, InitProducerIdReply
from nilometer.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import milliseconds

FIRST_WITH_PRODUCER_FENCED = 4


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _answer(services, request))


async def _answer(services: Services, request: Request) -> Reply:
    transactional_id: str | None = request.body.transactional_id
    producer_id = request.field("producer_id", NO_PRODUCER_ID)
    producer_epoch = request.field("producer_epoch", NO_EPOCH)
    if (denied := _denial(services, request)) is not ErrorCode.none:
        return _respond(request, InitProducerIdReply(denied))
    if transactional_id == "" or (producer_id < 0) != (producer_epoch < 0):
        return _respond(request, InitProducerIdReply(ErrorCode.invalid_request))
    if transactional_id is None:
        return _respond(request, await _new_identity(services))
    reply = await services.transactions.answer(
        InitProducerId(
            transactional_id=transactional_id,
            transaction_timeout_ms=milliseconds(request.body.transaction_timeout),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )
    )
    assert isinstance(reply, InitProducerIdReply)
    return _respond(request, reply)


def _denial(services: Services, request: Request) -> ErrorCode:
    """Return the error if the client may not get a producer id; ``none`` if it may.

    Idempotent producers need IDEMPOTENT_WRITE on the cluster, or WRITE on some topic (KIP-679).
    """
    access, transactional_id = access_of(services, request), request.body.transactional_id
    if transactional_id is not None:
        if access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.none
        return ErrorCode.transactional_id_authorization_failed
    if access.on_cluster(Operation.IDEMPOTENT_WRITE, report=False):
        return ErrorCode.none
    if access.allows_some(Operation.WRITE, ResourceType.TOPIC):
        return ErrorCode.none
    return ErrorCode.cluster_authorization_failed


async def _new_identity(services: Services) -> InitProducerIdReply:
    try:
        return InitProducerIdReply(ErrorCode.none, await services.producer_ids.next(), 0)
    except (KafkaError, CoordinationError):
        return InitProducerIdReply(ErrorCode.coordinator_load_in_progress)


def _respond(request: Request, reply: InitProducerIdReply) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=error_for(reply.error_code, request.version, FIRST_WITH_PRODUCER_FENCED),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


API = ApiSpec(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    handle=handle,
    rights=(
        Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        Right(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        Right(Operation.WRITE, ResourceType.TOPIC),
    ),
)
