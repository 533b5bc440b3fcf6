"""SASL on a connection: SaslHandshake and SaslAuthenticate, before any other request, and again in time."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

from nilometer.client.network.bearer_tokens import NoToken, bearer_token
from nilometer.client.settings.client_security import ClientSecurity
from nilometer.runtime import Runtime
from nilometer.security.oauthbearer import OAuthBearerClient
from nilometer.security.plain import PLAIN, PlainClient
from nilometer.security.sasl import SaslClient, SaslRejected
from nilometer.security.scram import ScramMechanism
from nilometer.security.scram_exchange import ScramClient
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

if TYPE_CHECKING:
    from nilometer.client.network.connection import Connection

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
