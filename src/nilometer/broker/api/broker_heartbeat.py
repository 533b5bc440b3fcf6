"""BrokerHeartbeat, only for controlled shutdown: a broker announces that it stops.

The controller moves the broker's leaderships at once and removes it from every ISR that it can leave. The
broker may stop once it has applied these changes from the metadata log. Liveness is not reported this way:
the brokers' sessions with the coordination service show it.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.control import causes
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.brokers import ShutdownProgress, decide_controlled_shutdown
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.image import ClusterImage
from nilometer.identifiers import BrokerEpoch, BrokerId
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    body = request.body

    def decide(image: ClusterImage) -> Decision[ShutdownProgress]:
        if not body.want_shut_down:
            why = (
                "BrokerHeartbeat is only for a controlled shutdown: liveness is by session, not by heartbeat"
            )
            return Decision((), ShutdownProgress(outcome=Outcome(ErrorCode.invalid_request, why)))
        return decide_controlled_shutdown(image, BrokerId(body.broker_id), BrokerEpoch(body.broker_epoch))

    cause = causes.shutdown(body.broker_id)
    return on_controller(
        services, request, decide, _respond, _refuse, acting_broker=body.broker_id, cause=cause
    )


def _respond(services: Services, request: Request, progress: ShutdownProgress) -> Reply:
    return request.respond(
        throttle_time_ms=0,
        error_code=progress.outcome.error,
        is_caught_up=True,
        is_fenced=False,
        should_shut_down=progress.outcome.ok,
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond(services, request, ShutdownProgress(outcome=Outcome(error, message)))


API = ApiSpec(
    key=ApiKey.BROKER_HEARTBEAT,
    versions=(0, 1),
    handle=handle,
    between_brokers=True,
    rights=(Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),),
)
