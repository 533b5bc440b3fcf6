"""SASL on a connection: SaslHandshake and SaslAuthenticate, before any other request, and again in time."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlencode

from nilometer.client.settings.client_security import ClientSecurity, OAuthLogin
from nilometer.http.client import HttpFailed, request
from nilometer.http.url import HttpUrl
from nilometer.runtime import Runtime
from nilometer.security.oauthbearer import OAuthBearerClient
from nilometer.security.plain import PLAIN, PlainClient
from nilometer.security.sasl import SaslClient, SaslRejected
from nilometer.security.scram import ScramClient, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

if TYPE_CHECKING:
    from nilometer.client.network.connection import Connection


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
LOGIN_WINDOW = (0.85, 0.95)
"""The part of a session's lifetime after which the login is repeated: a random point in between."""


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


async def log_in(connection: Connection, mechanism: str, client: SaslClient, runtime: Runtime) -> int:
    """Authenticate by the exchange of ``client``.

    Returns for how many milliseconds, 0 for no limit (KIP-368). Raises AuthenticationFailed, ConnectionLost.
    """
    where = f"{connection.host}:{connection.port}"
    answer = await connection.send(HANDSHAKE.request(mechanism=mechanism), is_login=True)
    if answer.error_code != ErrorCode.none:
        offered = ", ".join(answer.mechanisms)
        raise AuthenticationFailed(f"{where} does not offer {mechanism}, but {offered or 'no SASL'}")
    message: bytes | None = client.begin()
    try:
        while message is not None:
            answer = await connection.send(AUTHENTICATE.request(auth_bytes=message), is_login=True)
            if answer.error_code != ErrorCode.none:
                raise AuthenticationFailed(f"{where}: {answer.error_message or answer.error_code.name}")
            received: bytes = answer.auth_bytes
            message = await runtime.disk.offload(lambda received=received: client.respond(received))
    except SaslRejected as error:
        raise AuthenticationFailed(f"{where}: {error}") from None
    return milliseconds(answer.session_lifetime)


class LoginSession:
    """Authenticates again on a connection before its session ends: within 85 to 95 % of its lifetime, as
    Kafka's clients do. If that fails, the connection is closed.

    Requests that are sent meanwhile wait; those that were sent before are answered as usual.
    """

    def __init__(self, connection: Connection, security: ClientSecurity, runtime: Runtime) -> None:
        self._connection = connection
        self._security = security
        self._runtime = runtime
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Log in for the first time. Raises AuthenticationFailed, ConnectionLost."""
        client = await new_exchange(self._security, self._runtime)
        self._schedule(await self._log_in(client))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _log_in(self, client: SaslClient) -> int:
        mechanism = self._security.mechanism
        assert mechanism is not None, "the protocol has SASL"
        return await log_in(self._connection, mechanism, client, self._runtime)

    def _schedule(self, lifetime_ms: int) -> None:
        if lifetime_ms > 0 and not self._connection.closed:
            delay_ms = lifetime_ms * self._runtime.entropy.uniform(*LOGIN_WINDOW)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_ms / 1000, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._begin_again(), name="log in again")

    async def _begin_again(self) -> None:
        connection = self._connection
        try:
            client = await new_exchange(self._security, self._runtime)
            connection.hold_requests()
            lifetime_ms = await self._log_in(client)
        except KafkaError as error:
            connection.close(f"the login could not be repeated: {error.message}")
            return
        connection.release_requests()
        self._schedule(lifetime_ms)
