"""SASL on a new connection: SaslHandshake and SaslAuthenticate, before any other request."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from nilometer.client.settings.client_security import ClientSecurity
from nilometer.runtime import Runtime
from nilometer.security.plain import PLAIN, PlainClient
from nilometer.security.sasl import SaslClient, SaslRejected
from nilometer.security.scram import ScramMechanism
from nilometer.security.scram_exchange import ScramClient
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

if TYPE_CHECKING:
    from nilometer.client.network.connection import Connection

HANDSHAKE = api(ApiKey.SASL_HANDSHAKE, 1)
AUTHENTICATE = api(ApiKey.SASL_AUTHENTICATE, 1)
"""Versions that every broker since Kafka 2.2 serves: they are sent before the broker's versions are known."""
NONCE_BYTES = 24


class AuthenticationFailed(KafkaError):
    """The broker rejected the user, or did not prove that it knows the user. Not retriable."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.sasl_authentication_failed, message)


async def log_in(connection: Connection, security: ClientSecurity, runtime: Runtime) -> None:
    """Authenticate as the user of ``security``. Raises AuthenticationFailed, ConnectionLost."""
    mechanism = security.mechanism
    assert mechanism is not None, "the protocol has SASL"
    where = f"{connection.host}:{connection.port}"
    answer = await connection.send(HANDSHAKE.request(mechanism=mechanism))
    if answer.error_code != ErrorCode.none:
        offered = ", ".join(answer.mechanisms)
        raise AuthenticationFailed(f"{where} does not offer {mechanism}, but {offered or 'no SASL'}")
    client = _exchange(mechanism, security, runtime)
    message: bytes | None = client.begin()
    try:
        while message is not None:
            answer = await connection.send(AUTHENTICATE.request(auth_bytes=message))
            if answer.error_code != ErrorCode.none:
                raise AuthenticationFailed(f"{where}: {answer.error_message or answer.error_code.name}")
            received: bytes = answer.auth_bytes
            message = await runtime.disk.offload(lambda received=received: client.respond(received))
    except SaslRejected as error:
        raise AuthenticationFailed(f"{where}: {error}") from None


def _exchange(mechanism: str, security: ClientSecurity, runtime: Runtime) -> SaslClient:
    if mechanism == PLAIN:
        return PlainClient(security.user, security.password)
    nonce = base64.b64encode(runtime.entropy.bytes(NONCE_BYTES)).decode()
    return ScramClient(ScramMechanism(mechanism), security.user, security.password, nonce)
