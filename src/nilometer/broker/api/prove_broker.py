"""ProveBroker (Nilometer's own): a connection proves that it is from a broker of this cluster.

By the cluster's secret (:mod:`nilometer.cluster.cluster_secret`), or by the user that authenticated on the
listener between brokers (:mod:`nilometer.broker.authorization.broker_users`): the broker that connects asks
for the latter with a request that has no nonce; a broker that accepts only users answers every request so.
A connection has one attempt; a wrong proof closes it. :mod:`nilometer.broker.control.broker_peers` is the
connecting side.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request, spawn
from nilometer.broker.connection import CloseConnection, Reply
from nilometer.broker.services import Services
from nilometer.broker.settings.broker_authentication import AUTHENTICATION
from nilometer.cluster.cluster_secret import NONCE_BYTES, ProofExchange, Side, broker_proof, is_proof
from nilometer.security.principal import BROKER, Principal
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode

logger = logging.getLogger("nilometer.broker.api")


def handle(services: Services, request: Request) -> Reply | asyncio.Future[Reply]:
    body: wire.ProveBrokerRequest = request.body
    if body.proof:
        return _finish(services, request, body)
    if (refused := _refusal(services, request, body)) is not None:
        error, message = refused
        return request.respond(error_code=int(error), message=message)
    how = services.config.broker_authentication
    if not how.uses_secret or (how.uses_listener and not body.nonce):
        return _accept_user(services, request, body)
    return spawn(services, _begin(services, request, body))


def _refusal(
    services: Services, request: Request, body: wire.ProveBrokerRequest
) -> tuple[ErrorCode, str] | None:
    own = services.broker_id
    if body.cluster_id != services.cluster_id:
        return ErrorCode.inconsistent_cluster_id, f"this is a broker of cluster {services.cluster_id}"
    if body.expected_broker_id != own:
        return ErrorCode.invalid_request, f"this is broker {own}, not {body.expected_broker_id}"
    if body.broker_id < 0 or body.broker_id == own:
        return ErrorCode.invalid_request, f"broker {body.broker_id} cannot connect to broker {own}"
    how = services.config.broker_authentication
    if not body.nonce and not how.uses_listener:
        message = f"it requires a proof by the cluster's secret: its {AUTHENTICATION} is {how.value}"
        return ErrorCode.invalid_request, message
    if body.nonce and len(body.nonce) != NONCE_BYTES:
        return ErrorCode.invalid_request, f"the nonce has {len(body.nonce)} bytes instead of {NONCE_BYTES}"
    if request.connection.proof_begun:
        return ErrorCode.invalid_request, "this connection has already begun a proof"
    return None


def _accept_user(services: Services, request: Request, body: wire.ProveBrokerRequest) -> Reply:
    connection, context = request.connection, request.context
    connection.proof_begun = True
    broker_id, user = body.broker_id, context.principal
    why = services.broker_users.why_not(context)
    if why is not None:
        logger.warning(
            "%s:%d claims to be broker %d: %s", context.client_address, context.client_port, broker_id, why
        )
        return request.respond(error_code=int(ErrorCode.cluster_authorization_failed), message=why)
    services.broker_users.accept(connection)
    _become_broker(services, request, broker_id)
    logger.info(
        "%s:%d is broker %d, by its user %s", context.client_address, context.client_port, broker_id, user
    )
    return request.respond()


async def _begin(services: Services, request: Request, body: wire.ProveBrokerRequest) -> Reply:
    connection = request.connection
    connection.proof_begun = True
    keeper = services.secrets
    secret = await keeper.numbered(body.secret_number) or keeper.secrets.current
    exchange = ProofExchange(
        services.cluster_id,
        body.broker_id,
        services.broker_id,
        body.nonce,
        services.runtime.entropy.bytes(NONCE_BYTES),
    )
    connection.pending_proof = exchange, secret
    return request.respond(
        secret_number=secret.number,
        nonce=exchange.acceptor_nonce,
        proof=broker_proof(secret, Side.ACCEPTOR, exchange),
    )


def _finish(services: Services, request: Request, body: wire.ProveBrokerRequest) -> Reply:
    connection, context = request.connection, request.context
    pending, connection.pending_proof = connection.pending_proof, None
    if pending is None:
        raise CloseConnection("a proof without a preceding nonce exchange")
    exchange, secret = pending
    if not is_proof(secret, Side.INITIATOR, exchange, body.proof):
        logger.warning(
            "%s:%d claims to be broker %d, but its proof is wrong: it is not a broker of this cluster",
            context.client_address,
            context.client_port,
            exchange.initiator_id,
        )
        raise CloseConnection(f"the proof to be broker {exchange.initiator_id} is wrong")
    _become_broker(services, request, exchange.initiator_id)
    return request.respond()


def _become_broker(services: Services, request: Request, broker_id: int) -> None:
    context = request.context
    request.connection.context = dataclasses.replace(
        context, broker_id=broker_id, principal=Principal(BROKER, str(broker_id))
    )
    services.client_quotas.on_broker_proved(context.listener, context.client_address)


API = ApiSpec(
    key=wire.PROVE_BROKER,
    versions=(0, 0),
    handle=handle,
    between_brokers=True,
    exempt_from_quotas=True,  # a connection has one attempt; its quota would be that of all anonymous clients
    rights=NO_RIGHTS,
)
