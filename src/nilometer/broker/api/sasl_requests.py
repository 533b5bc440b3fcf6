"""SaslHandshake and SaslAuthenticate on a connection that has authenticated, or whose listener has no SASL.

Before that :mod:`nilometer.broker.authentication.sasl_gate` processes them.
"""

from __future__ import annotations

from nilometer.broker.api.spec import NO_RIGHTS, ApiSpec, Request
from nilometer.broker.authentication.sasl_gate import AUTHENTICATE_VERSIONS, HANDSHAKE_VERSIONS
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode


def handshake(services: Services, request: Request) -> Reply:
    return request.respond(error_code=ErrorCode.illegal_sasl_state, mechanisms=())


def authenticate(services: Services, request: Request) -> Reply:
    return request.respond(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


HANDSHAKE = ApiSpec(
    key=ApiKey.SASL_HANDSHAKE, versions=HANDSHAKE_VERSIONS, handle=handshake, rights=NO_RIGHTS
)
AUTHENTICATE = ApiSpec(
    key=ApiKey.SASL_AUTHENTICATE, versions=AUTHENTICATE_VERSIONS, handle=authenticate, rights=NO_RIGHTS
)
