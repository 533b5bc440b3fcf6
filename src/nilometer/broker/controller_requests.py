"""Requests that only the controller may decide: decided here while this broker is in office.

Whichever broker a client asks, the controller decides; what a failed attempt is called is the API's affair.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from nilometer.broker.api.spec import Request, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

Respond = Callable[[Services, Request, R], Reply]
Refuse = Callable[[Services, Request, ErrorCode, str], Reply]


def on_controller(
    services: Services,
    request: Request,
    decide: Callable[[ClusterImage], Decision[R]],
    respond: Respond[R],
    refuse: Refuse,
) -> asyncio.Future[Reply]:
    """Answer with ``respond(reply of the decision)``, or with ``refuse`` where no decision came about."""

    async def answer() -> Reply:
        try:
            reply = await services.controller.decide(decide)
        except KafkaError as problem:
            return refuse(services, request, problem.code, problem.message)
        except CoordinationError as problem:
            return refuse(services, request, ErrorCode.request_timed_out, str(problem))
        return respond(services, request, reply)

    return spawn(services, answer())
