"""InitProducerId: an identity for an idempotent producer.

A request without a transactional id gets a new producer id, also if it names its current id and epoch
(version 3): only the id of a transactional id can be fenced against its previous user.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.spec import ApiSpec, Request, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.coordination.store import CoordinationError
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    if request.body.transactional_id is not None:
        empty = request.body.transactional_id == ""
        error = ErrorCode.invalid_request if empty else ErrorCode.coordinator_not_available
        return _respond(request, error, -1, -1)
    return spawn(services, _answer(services, request))


async def _answer(services: Services, request: Request) -> Reply:
    known_id, known_epoch = request.field("producer_id", -1), request.field("producer_epoch", -1)
    if (known_id < 0) != (known_epoch < 0):
        return _respond(request, ErrorCode.invalid_request, -1, -1)
    try:
        return _respond(request, ErrorCode.none, await services.producer_ids.next(), 0)
    except (KafkaError, CoordinationError):
        return _respond(request, ErrorCode.coordinator_load_in_progress, -1, -1)


def _respond(request: Request, error: ErrorCode, producer_id: int, producer_epoch: int) -> Reply:
    return request.respond(
        throttle_time_ms=0, error_code=error, producer_id=producer_id, producer_epoch=producer_epoch
    )


API = ApiSpec(key=ApiKey.INIT_PRODUCER_ID, versions=(0, 5), handle=handle)
