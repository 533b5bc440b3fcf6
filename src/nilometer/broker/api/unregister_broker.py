"""UnregisterBroker: remove a broker that will never return, so that no partition waits for its log any more.

Rejected for a live broker: it would register again at once, without its former place in the ISRs.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.brokers import decide_unregister_broker
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    def decide(image: ClusterImage) -> Decision[Outcome]:
        known = image.broker(request.body.broker_id)
        if known is not None and not known.fenced:
            return Decision(
                (), Outcome(ErrorCode.invalid_request, f"Broker {known.id} is alive; stop it first.")
            )
        return decide_unregister_broker(image, request.body.broker_id)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER)


def _respond(services: Services, request: Request, outcome: Outcome) -> Reply:
    return request.respond(throttle_time_ms=0, error_code=outcome.error, error_message=outcome.message)


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond(services, request, Outcome(error, message))


API = ApiSpec(
    key=ApiKey.UNREGISTER_BROKER,
    versions=(0, 0),
    handle=handle,
    forwardable=True,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)
