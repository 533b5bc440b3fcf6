"""The login of a client: SaslHandshake and SaslAuthenticate, and the token of OAUTHBEARER.

The owner of the connection sends the requests, before any other request, and again before the session ends.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import quote, urlencode

from nilometer.client.settings import ClientSecurity, OAuthLogin
from nilometer.http.client import HttpFailed, request
from nilometer.http.url import HttpUrl
from nilometer.runtime import Runtime
from nilometer.security.oauthbearer import OAuthBearerClient
from nilometer.security.sasl import PLAIN, PlainClient, SaslClient, SaslRejected, answer_of, outcome_of
from nilometer.security.scram import ScramClient, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Message, milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

# The token of an OAUTHBEARER client: read from its file, or from the token endpoint (RFC 6749, 4.4).

USED_SHARE = 0.8
"""A token is used again during this share of the time for which it is valid, as in Kafka."""


class NoToken(Exception):
    """There is no token; the message says why, without any secret."""


async def bearer_token(login: OAuthLogin, runtime: Runtime) -> str:
    """Return a token. Raises NoToken."""
    if login.endpoint is None:
        return _from_file(login.token_file, runtime)
    cached = login.cached
    if runtime.clock.monotonic_ms() >= cached.use_until_ms:
        token, valid_ms = await _from_endpoint(login, login.endpoint, runtime)
        cached.token = token
        cached.use_until_ms = runtime.clock.monotonic_ms() + int(valid_ms * USED_SHARE)
    return cached.token


def _from_file(path: str, runtime: Runtime) -> str:
    try:
        return runtime.disk.read_file(path).decode("ascii").strip()
    except OSError as error:
        raise NoToken(f"the token cannot be read from {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise NoToken(f"{path} is no text with a token") from None


async def _from_endpoint(login: OAuthLogin, endpoint: HttpUrl, runtime: Runtime) -> tuple[str, int]:
    """Return a new token, and for how many milliseconds it is valid."""
    credentials = (login.client_id, login.client_secret)
    user = ":".join(quote(text, safe="") if login.url_encodes else text for text in credentials)
    fields = {"grant_type": "client_credentials"}
    if login.scope is not None:
        fields["scope"] = login.scope
    headers = {
        "Authorization": f"Basic {base64.b64encode(user.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    body = urlencode(fields).encode()
    where = f"{endpoint.authority}{endpoint.target}"
    try:
        answer = await request(runtime.network, endpoint, tls=login.tls, body=body, headers=headers)
        return _parse(answer)
    except (HttpFailed, ValueError) as error:
        raise NoToken(f"the token endpoint {where} gave no token: {error}") from None


def _parse(answer: bytes) -> tuple[str, int]:
    """Raises ValueError."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    token, seconds = fields.get("access_token"), fields.get("expires_in", 0)
    if not isinstance(token, str) or not token:
        raise ValueError("the response has no access_token")
    valid_s = seconds if isinstance(seconds, int) and 0 <= seconds < 1 << 31 else 0
    return token, valid_s * 1000


HANDSHAKE = api(ApiKey.SASL_HANDSHAKE, 1)
AUTHENTICATE = api(ApiKey.SASL_AUTHENTICATE, 1)
"""Versions that every broker since Kafka 2.2 serves: they are sent before the broker's versions are known."""
NONCE_BYTES = 24
LOG_IN = "log in"
"""What a client sends to log in, in recordings."""


class AuthenticationFailed(KafkaError):
    """The broker rejected the user, or did not prove that it knows the user. Not retriable."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.sasl_authentication_failed, message)


async def new_exchange(security: ClientSecurity, runtime: Runtime) -> SaslClient:
    """Begin an exchange as the user of ``security``, with a token if it needs one.

    Raises AuthenticationFailed if there is no token.
    """
    mechanism = security.mechanism
    assert mechanism is not None, "the protocol has SASL"
    if security.oauth is not None:
        try:
            return OAuthBearerClient(await bearer_token(security.oauth, runtime))
        except (NoToken, SaslRejected) as error:
            raise AuthenticationFailed(str(error)) from None
    if mechanism == PLAIN:
        return PlainClient(security.user, security.password)
    nonce = base64.b64encode(runtime.entropy.bytes(NONCE_BYTES)).decode()
    return ScramClient(
        ScramMechanism(mechanism), security.user, security.password, nonce, by_token=security.by_token
    )


async def log_in(
    send: Callable[[Message], Awaitable[Message]],
    where: str,
    mechanism: str,
    client: SaslClient,
    runtime: Runtime,
) -> int:
    """Authenticate at the broker ``where`` by the exchange of ``client``, with requests by ``send``.

    Returns for how many milliseconds, 0 for no limit (KIP-368). Raises AuthenticationFailed, ConnectionLost.
    """
    answer = await send(HANDSHAKE.request(mechanism=mechanism))
    if answer.error_code != ErrorCode.none:
        offered = ", ".join(answer.mechanisms)
        raise AuthenticationFailed(f"{where} does not offer {mechanism}, but {offered or 'no SASL'}")

    def exchange(work: Callable[[], bytes | None]) -> bytes | None:
        return answer_of(runtime.with_secret(LOG_IN, lambda: outcome_of(work)))

    message = exchange(client.begin)
    try:
        while message is not None:
            answer = await send(AUTHENTICATE.request(auth_bytes=message))
            if answer.error_code != ErrorCode.none:
                raise AuthenticationFailed(f"{where}: {answer.error_message or answer.error_code.name}")
            received: bytes = answer.auth_bytes
            message = await runtime.disk.offload(
                lambda received=received: exchange(lambda: client.respond(received))
            )
    except SaslRejected as error:
        raise AuthenticationFailed(f"{where}: {error}") from None
    return milliseconds(answer.session_lifetime)
