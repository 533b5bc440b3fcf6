"""ForwardRequest (Nilometer's own): a broker forwards a client's request to the controller, with its context.

The inner request is decided under the client's context, never the broker's: an API between brokers cannot be
carried. A broker that is not the controller responds NOT_CONTROLLER, and the sender locates the controller
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import msgspec

from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.replies import wait_whole
from nilometer.broker.request_context import RequestContext
from nilometer.broker.tasks import Tasks
from nilometer.broker.turns import Turns
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.security.principal import Principal
from nilometer.security.protocol import SecurityProtocol
from nilometer.wire import messages
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode, KafkaError, MalformedMessage

FRAME_LENGTH_BYTES = 4


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    tasks: Tasks
    turns: Turns


def api_over(parts: Parts, specs: Iterable[ApiSpec]) -> ApiSpec:
    """Return the ForwardRequest API, which carries requests of the forwardable APIs among ``specs``."""
    carried = {int(spec.key): spec for spec in specs if spec.forwardable}

    def handle(request: Request) -> Reply | asyncio.Future[Reply]:
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


async def _answer(parts: Parts, request: Request, spec: ApiSpec, inner: Request) -> Reply:
    try:
        reply = spec.handle(inner)
        frame = await reply if isinstance(reply, asyncio.Future) else reply
    except KafkaError as error:
        return _refuse(request, error.code, error.message)
    assert frame is not None, "every forwardable request has a response"
    return request.respond(response=(await wait_whole(frame, parts.turns))[FRAME_LENGTH_BYTES:])


def _refuse(request: Request, error: ErrorCode, message: str) -> Reply:
    return request.respond(error_code=int(error), message=message)
