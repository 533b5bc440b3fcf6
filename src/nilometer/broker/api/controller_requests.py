"""Requests that only the controller may decide: decided here while this broker is in office, else sent on.

Whichever broker a client asks, the controller decides. While nobody is in office, or the one who was has just
gone, the request waits and tries again. This broker has folded what was decided before it answers, so that a
client that asks it next finds its own change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from nilometer.broker.api.spec import Request, spawn
from nilometer.broker.connection import Reply
from nilometer.broker.control.controller_channel import FORWARDED_PREFIX, ConnectionLost
from nilometer.broker.services import Services
from nilometer.cluster.controller.decision import Decision
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.wire import messages
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

Respond = Callable[[Services, Request, R], Reply]
Refuse = Callable[[Services, Request, ErrorCode, str], Reply]

PATIENCE_MS = 15_000
RETRY_S = 0.05


def on_controller(
    services: Services,
    request: Request,
    decide: Callable[[ClusterImage], Decision[R]],
    respond: Respond[R],
    refuse: Refuse,
    *,
    brokers_only: bool = False,
) -> asyncio.Future[Reply]:
    """Answer with ``respond(reply of the decision)``, or with ``refuse`` where no decision came about.

    ``brokers_only``: what a broker says of itself or of a partition it leads. A client that says so is
    mistaken, and believing it would stop a broker that is well.
    """

    async def answer() -> Reply:
        if brokers_only and not _is_forwarded(request):
            why = "Only brokers may ask this."
            return refuse(services, request, ErrorCode.cluster_authorization_failed, why)
        clock = services.runtime.clock
        deadline_ms = clock.monotonic_ms() + PATIENCE_MS
        while True:
            try:
                if services.controller.is_in_office or _is_forwarded(request):
                    return respond(services, request, await services.controller.decide(decide))
                return await _send_on(services, request)
            except CoordinationError as problem:
                failure = ErrorCode.request_timed_out, str(problem)
            except KafkaError as problem:
                failure = problem.code, problem.message
                waiting = problem.code is ErrorCode.not_controller or isinstance(problem, ConnectionLost)
                if not waiting or _is_forwarded(request):
                    return refuse(services, request, *failure)
            if clock.monotonic_ms() >= deadline_ms:
                return refuse(services, request, *failure)
            await asyncio.sleep(RETRY_S)

    return spawn(services, answer())


def _is_forwarded(request: Request) -> bool:
    return (request.header.client_id or "").startswith(FORWARDED_PREFIX)


async def _send_on(services: Services, request: Request) -> Reply:
    response = await services.controller_channel.send(request.body)
    await services.metadata.catch_up()
    header = request.header
    return (messages.encode_response(header.correlation_id, header.api_key, header.api_version, response),)
