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

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import Request
from nilometer.broker.api.throttling import mute_as_told, throttled
from nilometer.broker.connection import Reply
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_link import ConnectionLost, ControllerChannel
from nilometer.broker.control.decision_log import Cause, client_request
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import UNLIMITED, ClientQuotas, MutationQuota
from nilometer.broker.tasks import Tasks
from nilometer.cluster.acl import Operation
from nilometer.cluster.controller.decision import Decision, Steps
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Clock
from nilometer.wire import messages
from nilometer.wire.errors import ErrorCode, KafkaError

R = TypeVar("R")

Respond = Callable[[Request, R], Reply]
Refuse = Callable[[Request, ErrorCode, str], Reply]

WAIT_MS_DEFAULT = 15_000
"""How long a request without ``timeout_ms`` waits for a controller."""
TIMEOUT_MS_MAX = 60_000
"""The upper limit for a request's ``timeout_ms``."""
RETRY_S = 0.05


class ControllerRequests:
    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        metadata: MetadataLog,
        controller: Controller,
        channel: ControllerChannel,
        quotas: ClientQuotas,
        rights: Rights,
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        self._metadata = metadata
        self._controller = controller
        self._channel = channel
        self._quotas = quotas
        self._rights = rights

    def decide(
        self,
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
        decision's reply. If nothing was decided, ``refuse`` makes the response from an error code and a
        message.

        ``acting_broker``: the broker that sends the request for itself or for a partition it leads; only a
        connection that proved to be from that broker is served. ``cause``: why the request is sent, for the
        log (None: its client wants it). A forwarded request that reaches a broker which is not the controller
        fails with KafkaError (NOT_CONTROLLER), for the broker that forwarded it.

        ``needs``: the operation on the cluster that the client must be allowed. It is checked where the
        request is decided: by the controller's ACLs, for the client that sent the request first. ``quota``:
        of which ``decide`` takes; the response says how long the client has to wait for it.
        """

        clock = self._clock
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
                self._rights.check_cluster(request, needs)
            quota.begin()
            made = decide(image)
            return note(made) if isinstance(made, Decision) else note_last(made)

        def note_last(steps: Steps[R]) -> Steps[R]:
            return note((yield from steps))

        def note(decision: Decision[R]) -> Decision[R]:
            decided[:] = decision.units
            return decision

        async def answer() -> Reply:
            why = None if acting_broker is None else self._rights.why_not_broker(request, acting_broker)
            if why is not None:
                return refuse(request, ErrorCode.cluster_authorization_failed, why)
            is_sent_on = acting_broker is not None or self._rights.comes_from_broker(request)
            while True:
                try:
                    if self._controller.is_active or is_sent_on:
                        reply = await self._controller.decide(decide_in_time, why_decided)
                        self._rights.audit_change(request, decided)
                        return self._throttled(request, respond(request, reply), quota)
                    left_ms = None if timeout_ms is None else deadline_ms - clock.monotonic_ms()
                    return await self._send_on(request, left_ms)
                except CoordinationError as error:
                    failure = ErrorCode.request_timed_out, str(error)
                except KafkaError as error:
                    failure = error.code, error.message
                    waiting = error.code is ErrorCode.not_controller or isinstance(error, ConnectionLost)
                    if waiting and request.context.is_forwarded:
                        raise
                    if not waiting or is_sent_on:
                        return refuse(request, *failure)
                if clock.monotonic_ms() >= deadline_ms:
                    return refuse(request, *failure)
                await asyncio.sleep(RETRY_S)

        async def answer_in_time(within_ms: int) -> Reply:
            answering = self._tasks.spawn(answer())
            try:
                async with asyncio.timeout(within_ms / 1000):
                    return await asyncio.shield(answering)
            except TimeoutError:
                why = f"The change was not applied within {within_ms} ms."
                return refuse(request, ErrorCode.request_timed_out, why)

        if timeout_ms is None or request.context.is_forwarded:  # the broker that forwarded it counts the time
            return self._tasks.spawn(answer())
        return self._tasks.spawn(answer_in_time(timeout_ms))

    async def _send_on(self, request: Request, left_ms: int | None) -> Reply:
        """Forward the request to the controller and return its response, once this broker has applied the
        change.

        ``left_ms``: the rest of the request's own timeout; None if it has none.
        """
        body = request.body
        if left_ms is not None:
            body = dataclasses.replace(body, timeout=timedelta(milliseconds=max(left_ms, 0)))
        frame = await self._channel.forward(request.header, body, request.context, timeout_ms=left_ms)
        await self._metadata.catch_up_with_all()
        whole = len(frame).to_bytes(4, "big") + frame
        mute_as_told(request, whole)
        return (whole,)

    def mutation_quota(self, request: Request, *, strict_from: int) -> MutationQuota:
        """Return the client's quota for the partitions that the request creates or deletes (KIP-599).

        From version ``strict_from`` on the request is rejected if the quota is used up: only then do clients
        understand that.
        """
        return self._quotas.mutations(
            request.context, request.header.client_id, strict=request.version >= strict_from
        )

    def _throttled(self, request: Request, reply: Reply, quota: MutationQuota) -> Reply:
        """Return the reply with the time for which the client has to wait; the broker that the client is
        connected to mutes its connection."""
        throttle_ms = quota.throttle_ms
        if throttle_ms == 0:
            return reply
        self._quotas.note_mutation_throttle(throttle_ms)
        if not request.context.is_forwarded:
            request.connection.mute(throttle_ms)
        return throttled(request, reply, throttle_ms)


def _timeout_ms(request: Request) -> int | None:
    """Return the request's ``timeout_ms``, at most ``TIMEOUT_MS_MAX``; None if its API has no such field."""
    timeout: timedelta | None = request.field("timeout")
    return None if timeout is None else min(max(messages.milliseconds(timeout), 0), TIMEOUT_MS_MAX)
