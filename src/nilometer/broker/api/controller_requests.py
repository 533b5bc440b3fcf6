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
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TypeVar

import msgspec

from nilometer.broker.api.access import Rights
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.api.throttling import mute_as_told, throttled
from nilometer.broker.control.controller import Controller
from nilometer.broker.control.controller_channel import ControllerChannel
from nilometer.broker.control.decision_log import Cause, client_request
from nilometer.broker.control.decision_queue import Client
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.quotas import UNLIMITED, ClientQuotas, MutationQuota
from nilometer.broker.request_context import RequestContext
from nilometer.broker.responses import Response, wait_whole
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.client.network.connection import ConnectionLost
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Steps
from nilometer.cluster.entries import Unit
from nilometer.cluster.image import ClusterImage
from nilometer.coordination.store import CoordinationError
from nilometer.runtime import Clock
from nilometer.security.principal import Principal, SecurityProtocol
from nilometer.wire import messages
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage
from nilometer.wire.large_requests import is_larger_than

R = TypeVar("R")

Respond = Callable[[Request, R], Response]
Refuse = Callable[[Request, ErrorCode, str], Response]

WAIT_MS_DEFAULT = 15_000
"""How long a request without ``timeout_ms`` waits for a controller."""
TIMEOUT_MS_MAX = 60_000
"""The upper limit for a request's ``timeout_ms``."""
RETRY_S = 0.05
CHANGE_BYTES_MAX = 2 * 1024 * 1024
"""Of a request, or of a part into which a large one is divided: it is encoded for the controller, decoded and
decided there, each at once. No entry of the metadata log can have as much."""


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
    ) -> asyncio.Future[Response]:
        """Decide the request on the controller, and return its future response.

        ``decide`` computes the decision from the controller's image, ``respond`` makes the response from the
        decision's response. If nothing was decided, ``refuse`` makes the response from an error code and a
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
        if acting_broker is None and is_larger_than(request.body, CHANGE_BYTES_MAX):
            why = f"A change of more than {CHANGE_BYTES_MAX} bytes that cannot be divided is refused."
            refused: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
            refused.set_result(refuse(request, ErrorCode.invalid_request, why))
            return refused
        timeout_ms = _timeout_ms(request)
        why_decided = cause or client_request(request.api.key, request.header.client_id, request.context)
        deadline_ms = clock.monotonic_ms() + (WAIT_MS_DEFAULT if timeout_ms is None else timeout_ms)

        client = None if acting_broker is not None else Client.of(request.context, request.header.client_id)
        decided: list[Unit] = []
        has_begun = False

        def decide_in_time(image: ClusterImage) -> Decision[R] | Steps[R]:
            nonlocal has_begun
            if timeout_ms is not None and clock.monotonic_ms() >= deadline_ms:
                raise KafkaError(
                    ErrorCode.request_timed_out,
                    f"The controller did not process the request within {timeout_ms} ms.",
                )
            has_begun = True
            if request.connection.closed and acting_broker is None:
                raise KafkaError(ErrorCode.network_exception, "The client has gone.")
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

        async def answer() -> Response:
            why = None if acting_broker is None else self._rights.why_not_broker(request, acting_broker)
            if why is not None:
                return refuse(request, ErrorCode.cluster_authorization_failed, why)
            is_sent_on = acting_broker is not None or self._rights.comes_from_broker(request)
            while True:
                try:
                    if self._controller.is_active or is_sent_on:
                        response = await self._controller.decide(decide_in_time, why_decided, client)
                        self._rights.audit_change(request, decided)
                        return self._throttled(request, respond(request, response), quota)
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

        async def answer_in_time(within_ms: int) -> Response:
            answering = self._tasks.spawn(answer())
            try:
                async with asyncio.timeout(within_ms / 1000):
                    return await asyncio.shield(answering)
            except TimeoutError:
                why = f"The change was not applied within {within_ms} ms."
                return refuse(request, ErrorCode.request_timed_out, why)
            finally:
                if not has_begun:  # it would wait with all that was asked for
                    answering.cancel()
                del answering  # its exception refers to this frame: both would stay as garbage

        if timeout_ms is None or request.context.is_forwarded:  # the broker that forwarded it counts the time
            return self._tasks.spawn(answer())
        return self._tasks.spawn(answer_in_time(timeout_ms))

    async def _send_on(self, request: Request, left_ms: int | None) -> Response:
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

    def _throttled(self, request: Request, response: Response, quota: MutationQuota) -> Response:
        """Return the response with the time for which the client has to wait; the broker that the client is
        connected to mutes its connection."""
        throttle_ms = quota.throttle_ms
        if throttle_ms == 0:
            return response
        self._quotas.note_mutation_throttle(throttle_ms)
        if not request.context.is_forwarded:
            request.connection.mute(throttle_ms)
        return throttled(request, response, throttle_ms)


def _timeout_ms(request: Request) -> int | None:
    """Return the request's ``timeout_ms``, at most ``TIMEOUT_MS_MAX``; None if its API has no such field."""
    timeout: timedelta | None = request.field("timeout")
    return None if timeout is None else min(max(messages.milliseconds(timeout), 0), TIMEOUT_MS_MAX)


# ForwardRequest (Nilometer's own): a broker forwards a client's request to the controller, with its context.
#
# The inner request is decided under the client's context, never the broker's: an API between brokers cannot
# be carried. A broker that is not the controller responds NOT_CONTROLLER, and the sender locates the
# controller again.

FRAME_LENGTH_BYTES = 4


class Parts(msgspec.Struct, frozen=True):
    tasks: Tasks
    turns: Turns


def api_over(parts: Parts, specs: Iterable[ApiSpec]) -> ApiSpec:
    """Return the ForwardRequest API, which carries requests of the forwardable APIs among ``specs``."""
    carried = {int(spec.key): spec for spec in specs if spec.forwardable}

    def handle(request: Request) -> Response | asyncio.Future[Response]:
        if not request.context.is_broker:
            why = "Only a broker of this cluster may send this request."
            return _refuse(request, ErrorCode.cluster_authorization_failed, why)
        try:
            spec, inner = _inner(carried, request)
        except MalformedMessage as error:
            return _refuse(request, ErrorCode.invalid_request, error.message)
        return parts.tasks.spawn(_answer(parts, request, spec, inner))

    rights = (Right(Operation.CLUSTER_ACTION, ResourceType.CLUSTER),)
    return ApiSpec(
        key=wire.FORWARD_REQUEST, versions=(0, 0), handle=handle, between_brokers=True, rights=rights
    )


def _inner(carried: Mapping[int, ApiSpec], request: Request) -> tuple[ApiSpec, Request]:
    """Decode the forwarded request, and return its API and the request in its client's context.

    Raises MalformedMessage if it cannot be decoded, or its API or version is not in ``carried``.
    """
    body: wire.ForwardedRequest = request.body
    header = messages.decode_request_header(body.request)
    spec = carried.get(header.api_key)
    if spec is None or not spec.serves(header.api_version):
        raise MalformedMessage(f"API {header.api_key} version {header.api_version} is not forwarded")
    header, inner = messages.decode_request(body.request)
    try:
        protocol = SecurityProtocol(body.security_protocol)
    except ValueError:
        raise MalformedMessage(f"unknown security protocol {body.security_protocol}") from None
    context = RequestContext(
        principal=Principal(body.principal_type, body.principal_name),
        client_address=body.client_address,
        client_port=body.client_port,
        listener=body.listener,
        security_protocol=protocol,
        forwarded_by=request.context.broker_id,
    )
    api = messages.api(header.api_key, header.api_version)
    return spec, Request(header, inner, api, request.connection, context)


async def _answer(parts: Parts, request: Request, spec: ApiSpec, inner: Request) -> Response:
    try:
        made = spec.handle(inner)
        frame = await made if isinstance(made, asyncio.Future) else made
    except KafkaError as error:
        return _refuse(request, error.code, error.message)
    assert frame is not None, "every forwardable request has a response"
    return request.respond(response=(await wait_whole(frame, parts.turns))[FRAME_LENGTH_BYTES:])


def _refuse(request: Request, error: ErrorCode, message: str) -> Response:
    return request.respond(error_code=int(error), message=message)
