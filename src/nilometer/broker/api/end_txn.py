"""EndTxn: commit or abort the open transaction of a producer.

Versions: 2 knows PRODUCER_FENCED; 5 bumps the producer epoch with every end, and returns the producer id and
epoch for the next transaction (KIP-890).
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.access import access_of
from nilometer.broker.api.spec import ApiSpec, Request, Right, spawn
from nilometer.broker.api.transaction_errors import error_for
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.transactions.config import EPOCH_BUMP_VERSION
from nilometer.transactions.requests import EndTransaction, EndTransactionReply
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

FIRST_WITH_EPOCH_BUMP = 5
FIRST_WITH_PRODUCER_FENCED = 2


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    return spawn(services, _answer(services, request))


async def _answer(services: Services, request: Request) -> Reply:
    body = request.body
    write, kind = Operation.WRITE, ResourceType.TRANSACTIONAL_ID
    if not access_of(services, request).allows(write, kind, body.transactional_id):
        return _respond(request, EndTransactionReply(ErrorCode.transactional_id_authorization_failed))
    bumps = request.version >= FIRST_WITH_EPOCH_BUMP
    reply = await services.transactions.answer(
        EndTransaction(
            transactional_id=body.transactional_id,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            committed=body.committed,
            version=EPOCH_BUMP_VERSION if bumps else 0,
        )
    )
    assert isinstance(reply, EndTransactionReply)
    return _respond(request, reply)


def _respond(request: Request, reply: EndTransactionReply) -> Reply:
    error = error_for(reply.error_code, request.version, FIRST_WITH_PRODUCER_FENCED)
    if request.version < FIRST_WITH_EPOCH_BUMP:
        return request.respond(throttle_time_ms=0, error_code=error)
    return request.respond(
        throttle_time_ms=0,
        error_code=error,
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


API = ApiSpec(
    key=ApiKey.END_TXN,
    versions=(0, 5),
    handle=handle,
    rights=(Right(Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
)
