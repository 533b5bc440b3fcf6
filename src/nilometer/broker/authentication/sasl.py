"""SASL on a listener: what its connections share, the requests of one while it authenticates, and sessions
with an end.

While it authenticates, a connection sends ApiVersions and the SASL exchange and no others. An authenticated
connection whose session ends has to authenticate again (KIP-368).
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import Buffer

from nilometer.broker.authentication.handshakes import UnauthenticatedConnections
from nilometer.broker.connection import Connection, Dispatcher
from nilometer.broker.responses import CloseConnection, Response
from nilometer.broker.settings.listener_security import SaslSettings
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Clock, Runtime, WithSecret
from nilometer.security.oauthbearer import OAUTHBEARER, OAuthBearerServer
from nilometer.security.principal import USER, Principal
from nilometer.security.sasl import (
    PLAIN,
    PlainServer,
    SaslRejected,
    SaslServer,
    answer_of,
    outcome_of,
    session_lifetime_ms,
)
from nilometer.security.scram import ScramCredential, ScramMechanism, ScramServer, TokenLogin
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey, any_api_key
from nilometer.wire.errors import ErrorCode, MalformedMessage

if TYPE_CHECKING:
    from nilometer.broker.authentication.known_tokens import KnownTokens
    from nilometer.broker.authentication.token_keys import TokenValidator


logger = logging.getLogger("nilometer.broker.authentication")

NONCE_BYTES = 24


class SaslListener:
    def __init__(
        self,
        settings: SaslSettings,
        image: Callable[[], ClusterImage],
        placeholder_key: Callable[[], bytes],
        runtime: Runtime,
        tokens: KnownTokens | None = None,
    ) -> None:
        """``placeholder_key`` returns the secret from which salts of unknown users are made. ``tokens``: the
        delegation tokens by which clients may log in; None: by none."""
        self.settings = settings
        self.clock = runtime.clock
        self.disk = runtime.disk
        self.unauthenticated = UnauthenticatedConnections(settings.unauthenticated_max_per_address)
        self._image = image
        self._placeholder_key = placeholder_key
        self._entropy = runtime.entropy
        self._with_secret = runtime.with_secret
        self._delegation_tokens = tokens
        self.tokens = _token_validator(settings, runtime)
        """Validates the tokens of OAUTHBEARER; None if that is not enabled."""

    def server(self, mechanism: str) -> SaslServer:
        """Begin an exchange of an enabled mechanism."""
        return AnsweredServer(self._server(mechanism), self._with_secret)

    def _server(self, mechanism: str) -> SaslServer:
        if mechanism == PLAIN:
            return PlainServer(self.settings.passwords)
        if mechanism == OAUTHBEARER:
            assert self.tokens is not None, "the mechanism is enabled"
            return OAuthBearerServer(self.tokens.validate)
        scram = ScramMechanism(mechanism)

        def find(user: str) -> ScramCredential | None:
            return self._image().scram_users.of(user).get(scram)

        def find_token(token_id: str) -> TokenLogin | None:
            tokens = self._delegation_tokens
            return None if tokens is None else tokens.login(scram, token_id)

        def work_for_token(token_id: str) -> Callable[[], None] | None:
            tokens = self._delegation_tokens
            return None if tokens is None else tokens.work_before_login(scram, token_id)

        nonce = base64.b64encode(self._entropy.bytes(NONCE_BYTES)).decode()
        return ScramServer(scram, find, nonce, self._placeholder_key(), find_token, work_for_token)

    def has_token(self, token_id: str) -> bool:
        """Return whether a session that began with this delegation token may go on."""
        return self._delegation_tokens is not None and self._delegation_tokens.is_valid(token_id)


ANSWER_LOGIN = "answer login"
"""What a server makes of what a client sends to log in, in recordings."""


class AnsweredServer(SaslServer):
    """An exchange whose outcome is recorded: replay has neither passwords nor keys."""

    def __init__(self, server: SaslServer, with_secret: WithSecret) -> None:
        self._server = server
        self._with_secret = with_secret
        self._user: str | None = None
        self._expires_ms: int | None = None
        self._token_id: str | None = None
        self._failure: str | None = None

    def respond(self, message: bytes) -> bytes:
        server = self._server

        def work() -> list[Any]:
            outcome = outcome_of(lambda: server.respond(message))
            return [outcome, server.user, server.expires_ms, server.token_id, server.failure]

        outcome, self._user, self._expires_ms, self._token_id, self._failure = self._with_secret(
            ANSWER_LOGIN, work
        )
        answer = answer_of(outcome)
        assert answer is not None, "a server answers each message"
        return answer

    def work_before(self, message: bytes) -> Callable[[], None] | None:
        return self._server.work_before(message)

    @property
    def user(self) -> str | None:
        return self._user

    @property
    def expires_ms(self) -> int | None:
        return self._expires_ms

    @property
    def token_id(self) -> str | None:
        return self._token_id

    @property
    def failure(self) -> str | None:
        return self._failure


def _token_validator(settings: SaslSettings, runtime: Runtime) -> TokenValidator | None:
    if settings.oauth is None:
        return None
    from nilometer.broker.authentication.token_keys import TokenValidator  # needs the extra oauth

    return TokenValidator(runtime, settings.oauth)


REAUTHENTICATION_INTERVAL_MS = 1000
"""A client that authenticates again twice within this time gets the error of one that need not, as in
Kafka."""
_HANDSHAKE = int(ApiKey.SASL_HANDSHAKE)

BeginAgain = Callable[[Buffer, Connection], "asyncio.Future[Response] | Response"]


class ExpiringSession:
    """Implements :class:`~nilometer.broker.connection.Dispatcher` for one session of one connection."""

    def __init__(
        self,
        served: Dispatcher,
        clock: Clock,
        lifetime_ms: int,
        begin_again: BeginAgain,
        not_before_ms: int,
        is_token_valid: Callable[[], bool] | None = None,
    ) -> None:
        """``served`` processes the requests of authenticated connections; ``begin_again`` a SaslHandshake,
        from the monotonic time ``not_before_ms`` on. ``is_token_valid``: whether the delegation token of the
        login still is; None: it was not by one."""
        self._served = served
        self._clock = clock
        self._begin_again = begin_again
        self._not_before_ms = not_before_ms
        self._is_token_valid = is_token_valid
        self._ends_ms = clock.monotonic_ms() + lifetime_ms

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        now_ms = self._clock.monotonic_ms()
        is_handshake = int.from_bytes(memoryview(frame)[:2], "big") == _HANDSHAKE
        if is_handshake and now_ms >= self._not_before_ms:
            return self._begin_again(frame, connection)
        if now_ms > self._ends_ms:
            raise CloseConnection("its session has expired, and it has not authenticated again")
        if self._is_token_valid is not None and not self._is_token_valid():
            raise CloseConnection("the delegation token of its login has expired or was removed")
        return self._served.dispatch(frame, connection)

    def may_pipeline(self, frame: Buffer) -> bool:
        return self._served.may_pipeline(frame)

    def request_failed(self, error: BaseException) -> None:
        self._served.request_failed(error)

    def connection_opened(self, connection: Connection) -> bool:
        return self._served.connection_opened(connection)

    def connection_closed(self, connection: Connection) -> None:
        self._served.connection_closed(connection)


HANDSHAKE_VERSIONS = (0, 1)
AUTHENTICATE_VERSIONS = (0, 2)
FIRST_WITH_AUTHENTICATE = 1
"""The first version of SaslHandshake after which messages come in SaslAuthenticate requests."""
FIRST_WITH_LIFETIME = 1
"""The first version of SaslAuthenticate whose response says how long the session may last."""


class SaslGate:
    """Implements :class:`~nilometer.broker.connection.Dispatcher` for one connection."""

    def __init__(
        self,
        listener: SaslListener,
        served: Dispatcher,
        frame_bytes_max: int,
        former_mechanism: str | None = None,
        former_principal: Principal | None = None,
    ) -> None:
        """``served`` processes the requests of authenticated connections, with frames of up to
        ``frame_bytes_max``. ``former_mechanism``, ``former_principal``: those of a client that
        authenticates again. (A broker that has proved to be one has another principal since.)"""
        self._listener = listener
        self._former_mechanism = former_mechanism
        self._served = served
        self._frame_bytes_max = frame_bytes_max
        self._timer: asyncio.TimerHandle | None = None
        self._mechanism = ""
        self._former_principal = former_principal
        self._server: SaslServer | None = None
        self._has_headers = True
        self._is_counted = False
        self._is_failure_logged = False
        self._next_begin_ms = 0
        """The monotonic time from which the client may authenticate again."""

    # --- the connection's side

    def connection_opened(self, connection: Connection) -> bool:
        if not self._listener.unauthenticated.take(connection.peer[0]):
            return False
        self._is_counted = True
        connection.context = dataclasses.replace(connection.context, must_authenticate=True)
        self._start_timer(connection)
        if self._served.connection_opened(connection):
            return True
        self._leave(connection)
        return False

    def connection_closed(self, connection: Connection) -> None:
        self._leave(connection)
        self._served.connection_closed(connection)

    def begin_again(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        """Process the SaslHandshake by which the client of a session begins to authenticate again."""
        connection.hand_over(self, self._listener.settings.receive_bytes_max)
        self._start_timer(connection)
        self._next_begin_ms = self._listener.clock.monotonic_ms() + REAUTHENTICATION_INTERVAL_MS
        return self.dispatch(frame, connection)

    def _start_timer(self, connection: Connection) -> None:
        timeout_ms = self._listener.settings.timeout_ms
        self._timer = asyncio.get_running_loop().call_later(
            timeout_ms / 1000, connection.abort, f"has not authenticated within {timeout_ms} ms"
        )

    def _leave(self, connection: Connection) -> None:
        """Count the connection as unauthenticated no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_counted:
            self._is_counted = False
            self._listener.unauthenticated.release(connection.peer[0])

    def request_failed(self, error: BaseException) -> None:
        self._served.request_failed(error)

    def may_pipeline(self, frame: Buffer) -> bool:
        return False

    # --- requests

    def dispatch(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        if not self._has_headers:
            server, message = self._server, bytes(frame)
            connection.last_api = ApiKey.SASL_AUTHENTICATE
            assert server is not None, "a mechanism was chosen before"
            return self._after_work(
                server, message, lambda: self._on_bare_message(server, message, connection)
            )
        data = cast(bytes, frame)
        try:
            header = messages.decode_request_header(data)
            connection.last_api = key = header.api_key
            version = header.api_version
            if key == ApiKey.API_VERSIONS and self._server is None and self._former_mechanism is None:
                return self._served.dispatch(frame, connection)
            if key == ApiKey.SASL_HANDSHAKE and self._server is None:
                _check_version(version, HANDSHAKE_VERSIONS)
                return self._on_handshake(*messages.decode_request(data), connection)
            if key == ApiKey.SASL_AUTHENTICATE and self._server is not None:
                _check_version(version, AUTHENTICATE_VERSIONS)
                server, (header, body) = self._server, messages.decode_request(data)
                return self._after_work(
                    server, body.auth_bytes, lambda: self._on_authenticate(server, header, body, connection)
                )
        except MalformedMessage as error:
            raise CloseConnection(f"malformed request before authentication: {error.message}") from None
        raise CloseConnection(f"sent {_name(key)} before it has authenticated{self._again}")

    @property
    def _again(self) -> str:
        return "" if self._former_mechanism is None else " again"

    def _on_handshake(
        self, header: messages.RequestHeader, body: messages.Message, connection: Connection
    ) -> asyncio.Future[Response] | Response:
        enabled = self._listener.settings.mechanisms
        mechanism: str = body.mechanism
        if mechanism not in enabled:
            response = _respond(header, error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=enabled)
            return self._reject(connection, "asked for a SASL mechanism that is not enabled", response)
        self._mechanism = mechanism
        if self._former_mechanism not in (None, mechanism):
            response = _respond(header, error_code=ErrorCode.none, mechanisms=enabled)
            return self._reject(connection, f"authenticated by {self._former_mechanism} before", response)
        self._server = self._listener.server(mechanism)
        self._has_headers = header.api_version >= FIRST_WITH_AUTHENTICATE
        return _respond(header, error_code=ErrorCode.none, mechanisms=enabled)

    def _after_work(
        self, server: SaslServer, message: bytes, respond: Callable[[], asyncio.Future[Response] | Response]
    ) -> asyncio.Future[Response] | Response:
        """Respond to a message of the exchange, after the work off the event loop that it needs."""
        work = server.work_before(message)
        if work is None:
            return respond()

        async def respond_later() -> Response:
            await self._listener.disk.offload(work)
            response = respond()
            return await response if isinstance(response, asyncio.Future) else response

        return asyncio.ensure_future(respond_later())

    def _on_authenticate(
        self,
        server: SaslServer,
        header: messages.RequestHeader,
        body: messages.Message,
        connection: Connection,
    ) -> asyncio.Future[Response] | Response:
        try:
            answer = server.respond(body.auth_bytes)
            lifetime_ms = self._maybe_admit(server, connection)
        except SaslRejected as error:
            during = "authentication" if self._former_mechanism is None else "re-authentication"
            shown = error.shown or (
                f"Authentication failed during {during} due to invalid credentials "
                f"with SASL mechanism {self._mechanism}"
            )
            response = _respond(
                header,
                error_code=ErrorCode.sasl_authentication_failed,
                error_message=shown,
                auth_bytes=b"",
            )
            return self._reject(connection, str(error), response)
        fields = {"session_lifetime_ms": lifetime_ms} if header.api_version >= FIRST_WITH_LIFETIME else {}
        return _respond(header, error_code=ErrorCode.none, error_message=None, auth_bytes=answer, **fields)

    def _on_bare_message(
        self, server: SaslServer, message: bytes, connection: Connection
    ) -> asyncio.Future[Response] | Response:
        try:
            answer = server.respond(message)
            self._maybe_admit(server, connection)
        except SaslRejected as error:
            return self._reject(connection, str(error), None)
        return (len(answer).to_bytes(4, "big"), answer)

    # --- the outcome

    def _maybe_admit(self, server: SaslServer, connection: Connection) -> int:
        """Let the client's requests be processed if it has authenticated.

        Returns for how many milliseconds, 0 for no limit. Raises SaslRejected.
        """
        if server.user is None:
            if server.failure is not None:
                self._log_failure(connection, server.failure)
            return 0
        principal = Principal(USER, server.user)
        former = self._former_principal
        by_token = server.token_id is not None
        if former is None:
            connection.context = dataclasses.replace(
                connection.context, principal=principal, by_token=by_token, must_authenticate=False
            )
        elif former != principal:
            raise _changed(former, principal)
        else:
            connection.context = dataclasses.replace(connection.context, by_token=by_token)
        self._former_principal = principal
        self._leave(connection)
        max_ms = self._listener.settings.max_reauth_ms.get(self._mechanism, 0)
        clock = self._listener.clock
        lifetime_ms = session_lifetime_ms(server.expires_ms, clock.wall_ms(), max_ms)
        if lifetime_ms is None:
            connection.hand_over(self._served, self._frame_bytes_max)
            return 0
        session = ExpiringSession(
            self._served,
            clock,
            lifetime_ms,
            self._begin_again,
            self._next_begin_ms,
            self._is_token_valid(server.token_id),
        )
        connection.hand_over(session, self._frame_bytes_max)
        return lifetime_ms

    def _is_token_valid(self, token_id: str | None) -> Callable[[], bool] | None:
        return None if token_id is None else lambda: self._listener.has_token(token_id)

    def _begin_again(self, frame: Buffer, connection: Connection) -> asyncio.Future[Response] | Response:
        gate = SaslGate(
            self._listener, self._served, self._frame_bytes_max, self._mechanism, self._former_principal
        )
        return gate.begin_again(frame, connection)

    def _reject(self, connection: Connection, why: str, response: Response) -> asyncio.Future[Response]:
        """Log the failure; return the future of the response, after which the connection ends."""
        connection.stop_reading()
        self._log_failure(connection, why)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Response] = loop.create_future()

        def finish() -> None:
            if not answered.done():
                answered.set_result(response)
                connection.close()

        loop.call_later(self._listener.settings.failure_delay_ms / 1000, finish)
        return answered

    def _log_failure(self, connection: Connection, why: str) -> None:
        if not self._is_failure_logged:
            self._is_failure_logged = True
            logger.warning(
                "Authentication failed: %s:%d, listener %s, mechanism %s: %s",
                *connection.peer,
                connection.context.listener,
                self._mechanism or "none",
                why,
            )


def _changed(former: Principal, principal: Principal) -> SaslRejected:
    return SaslRejected(
        f"the client of {former} authenticated again as {principal}",
        "Cannot change principals during re-authentication from "
        f"{former.type}.{former.name}: {principal.type}.{principal.name}",
    )


def _respond(header: messages.RequestHeader, **fields: object) -> Response:
    codec = messages.api(header.api_key, header.api_version)
    response = codec.response(**fields)
    return (messages.encode_response(header.correlation_id, codec.key, codec.version, response),)


def _check_version(version: int, served: tuple[int, int]) -> None:
    if not served[0] <= version <= served[1]:
        raise CloseConnection(f"a SASL request of version {version}, which is not served")


def _name(api_key: int) -> str:
    try:
        return any_api_key(api_key).name
    except (KeyError, ValueError):
        return f"API key {api_key}"
