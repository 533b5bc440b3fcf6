"""Requests that only the controller may decide: decided here if this broker is the controller, else
forwarded.

A client may send such a request to any broker; the controller decides. While there is no controller, or it
has just failed, the request waits and is tried again. This broker applies the decision to its image before it
responds, so that the client's next request to it sees the client's own change.

A request with a ``timeout_ms`` gets its response within that time: REQUEST_TIMED_OUT if the change is not
applied by then. A decision that has not begun by then never begins; one that has begun continues, and the
client does not know its outcome.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from nilometer.broker.api.access import audit_change, check_cluster, comes_from_broker, why_not_broker
from nilometer.broker.api.spec import Request, spawn
from nilometer.broker.api.throttling import mute_as_told, throttled
from nilometer.broker.connection import Reply
from nilometer.broker.control.controller_link import ConnectionLost
from nilometer.broker.control.decision_log import Cause, client_request
from nilometer.broker.quotas import UNLIMITED, MutationQuota
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation
from nilometer.cluster.controller.decision import Decision, Steps
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.wire import messages
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

Respond = Callable[[Services, Request, R], Reply]
Refuse = Callable[[Services, Request, ErrorCode, str], Reply]

WAIT_MS_DEFAULT = 15_000
"""How long a request without ``timeout_ms`` waits for a controller."""
TIMEOUT_MS_MAX = 60_000
"""The upper limit for a request's ``timeout_ms``."""
RETRY_S = 0.05


def on_controller(
    services: Services,
    request: Request,
    decide: Callable[[ClusterImage], Decision[R] | Steps[R]],
    respond: Respond[R],
    refuse: Refuse,
    *,
    acting_broker: int | None = None,
    cause: Cause | None = None,
    needs: Operation | None = None,
    quota: MutationQuota = UNLIMITED,
) -> asyncio.Future[Reply]:
    """Decide the request on the controller, and return its future response.

    ``decide`` computes the decision from the controller's image, ``respond`` makes the response from the
    decision's reply. If nothing was decided, ``refuse`` makes the response from an error code and a message.

    ``acting_broker``: the broker that sends the request for itself or for a partition it leads; only a
    connection that proved to be from that broker is served. ``cause``: why the request is sent, for the log
    (None: its client wants it). A forwarded request that reaches a broker which
    is not the controller fails with KafkaError (NOT_CONTROLLER), for the broker that forwarded it.

    ``needs``: the operation on the cluster that the client must be allowed. It is checked where the request
    is decided: by the controller's ACLs, for the client that sent the request first. ``quota``: of which
    ``decide`` takes; the response says how long the client has to wait for it.
    """

    clock = services.runtime.clock
    timeout_ms = _timeout_ms(request)
    why_decided = cause or client_request(request.api.key, request.header.client_id, request.context)
    deadline_ms = clock.monotonic_ms() + (WAIT_MS_DEFAULT if timeout_ms is None else timeout_ms)

    decided: list[Unit] = []

    def decide_in_time(image: ClusterImage) -> Decision[R] | Steps[R]:
        if timeout_ms is not None and clock.monotonic_ms() >= deadline_ms:
            raise KafkaError(
                ErrorCode.request_timed_out,
                f"The controller did not process the request within {timeout_ms} ms.",
            )
        if needs is not None:
            check_cluster(services, request, needs)
        quota.begin()
        made = decide(image)
        return note(made) if isinstance(made, Decision) else note_last(made)

    def note_last(steps: Steps[R]) -> Steps[R]:
        return note((yield from steps))

    def note(decision: Decision[R]) -> Decision[R]:
        decided[:] = decision.units
        return decision

    async def answer() -> Reply:
        why = None if acting_broker is None else why_not_broker(services, request, acting_broker)
        if why is not None:
            return refuse(services, request, ErrorCode.cluster_authorization_failed, why)
        is_sent_on = acting_broker is not None or comes_from_broker(services, request)
        while True:
            try:
                if services.controller.is_active or is_sent_on:
                    reply = await services.controller.decide(decide_in_time, why_decided)
                    if services.authorizer is not None and decided:
                        audit_change(services.authorizer.audit, request, decided)
                    return _throttled(services, request, respond(services, request, reply), quota)
                left_ms = None if timeout_ms is None else deadline_ms - clock.monotonic_ms()
                return await _send_on(services, request, left_ms)
            except CoordinationError as error:
                failure = ErrorCode.request_timed_out, str(error)
            except KafkaError as error:
                failure = error.code, error.message
                waiting = error.code is ErrorCode.not_controller or isinstance(error, ConnectionLost)
                if waiting and request.context.is_forwarded:
                    raise
                if not waiting or is_sent_on:
                    return refuse(services, request, *failure)
            if clock.monotonic_ms() >= deadline_ms:
                return refuse(services, request, *failure)
            await asyncio.sleep(RETRY_S)

    async def answer_in_time(within_ms: int) -> Reply:
        answering = spawn(services, answer())
        try:
            async with asyncio.timeout(within_ms / 1000):
                return await asyncio.shield(answering)
        except TimeoutError:
            why = f"The change was not applied within {within_ms} ms."
            return refuse(services, request, ErrorCode.request_timed_out, why)

    if timeout_ms is None or request.context.is_forwarded:  # the broker that forwarded it counts the time
        return spawn(services, answer())
    return spawn(services, answer_in_time(timeout_ms))


def _timeout_ms(request: Request) -> int | None:
    """Return the request's ``timeout_ms``, at most ``TIMEOUT_MS_MAX``; None if its API has no such field."""
    timeout: timedelta | None = request.field("timeout")
    return None if timeout is None else min(max(messages.milliseconds(timeout), 0), TIMEOUT_MS_MAX)


async def _send_on(services: Services, request: Request, left_ms: int | None) -> Reply:
    """Forward the request to the controller and return its response, once this broker has applied the change.

    ``left_ms``: the rest of the request's own timeout; None if it has none.
    """
    body = request.body
    if left_ms is not None:
        body = dataclasses.replace(body, timeout=timedelta(milliseconds=max(left_ms, 0)))
    frame = await services.controller_channel.forward(
        request.header, body, request.context, timeout_ms=left_ms
    )
    await services.metadata.catch_up_with_all()
    whole = len(frame).to_bytes(4, "big") + frame
    mute_as_told(request, whole)
    return (whole,)


def mutation_quota(services: Services, request: Request, *, strict_from: int) -> MutationQuota:
    """Return the client's quota for the partitions that the request creates or deletes (KIP-599).

    From version ``strict_from`` on the request is rejected if the quota is used up: only then do clients
    understand that.
    """
    return services.client_quotas.mutations(
        request.context, request.header.client_id, strict=request.version >= strict_from
    )


def _throttled(services: Services, request: Request, reply: Reply, quota: MutationQuota) -> Reply:
    """Return the reply with the time for which the client has to wait; the broker that the client is
    connected to mutes its connection."""
    throttle_ms = quota.throttle_ms
    if throttle_ms == 0:
        return reply
    services.client_quotas.note_mutation_throttle(throttle_ms)
    if not request.context.is_forwarded:
        request.connection.mute(throttle_ms)
    return throttled(request, reply, throttle_ms)
