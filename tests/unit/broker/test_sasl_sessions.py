"""Sessions with an end (KIP-368), on a clock of the test: before the end, after it, and other logins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from nilometer.broker.authentication import known_tokens
from nilometer.broker.authentication.known_tokens import KnownTokens
from nilometer.broker.authentication.sasl import SaslGate, SaslListener
from nilometer.broker.connection import Connection
from nilometer.broker.request_context import RequestContext
from nilometer.broker.settings.listener_security import SaslSettings
from nilometer.cluster.controller.access import TokenLifetimes
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import DelegationTokenChanged
from nilometer.runtime import Runtime
from nilometer.security.delegation_token import DelegationToken, TokenKey, login_credential, password_of
from nilometer.security.principal import BROKER, Principal
from nilometer.security.sasl import PlainClient
from nilometer.security.scram import ScramClient, ScramCredential, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message, api, decode_response, encode_request
from support.eventually import becomes

HANDSHAKE, AUTHENTICATE, METADATA = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA
LIFETIME_MS, TIMEOUT_MS = 3_000, 60_000
SERVED = b"\0\0\0\6served"
SETTINGS = SaslSettings(
    mechanisms=("PLAIN", "SCRAM-SHA-256"),
    passwords={"alice": "a", "bob": "b"},
    receive_bytes_max=10_000,
    failure_delay_ms=0,
    timeout_ms=TIMEOUT_MS,
    unauthenticated_max_per_address=1,
    max_reauth_ms={"PLAIN": LIFETIME_MS},
)


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1000


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.ended = False

    def write(self, data):
        self.sent += bytes(data)

    def writelines(self, list_of_data):
        self.sent += b"".join(bytes(part) for part in list_of_data)

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 5) if name == "peername" else default

    def pause_reading(self):
        pass

    def is_closing(self):
        return self.ended

    def close(self):
        self.ended = True

    def abort(self):
        self.ended = True


class Served:
    """The dispatcher of authenticated connections: answers everything in the same way."""

    def dispatch(self, frame, connection):
        return (SERVED,)

    def may_pipeline(self, frame):
        return False

    def connection_opened(self, connection):
        return True

    def connection_closed(self, connection):
        pass


class Client:
    """A connection, from its client's side. Each request gets its answer before the next is sent."""

    def __init__(
        self, settings: SaslSettings = SETTINGS, tokens: Callable[[ManualClock], KnownTokens] | None = None
    ) -> None:
        self.clock = ManualClock()
        system = Runtime.system()
        runtime = replace(system, clock=self.clock)
        self.listener = SaslListener(
            settings, ClusterImage, lambda: b"key", runtime, tokens and tokens(self.clock)
        )
        self.transport, self.log = Transport(), []
        gate = SaslGate(self.listener, Served(), 100_000)
        self.connection = Connection(gate, 10_000, self.log.append, context=RequestContext(listener="TEST"))
        self.connection.connection_made(self.transport)

    async def send(self, key: ApiKey, version: int, **fields: object) -> bytes:
        """Return what is received; nothing if the connection ended."""
        return await self.send_bytes(encode_request(7, "test", api(key, version).request(**fields)))

    async def send_bytes(self, request: bytes) -> bytes:
        self.transport.sent = b""
        room = self.connection.get_buffer(-1)
        room[: len(request)] = request
        self.connection.buffer_updated(len(request))
        for _ in range(5):
            await asyncio.sleep(0)  # a failure is answered by a timer
        return self.transport.sent

    async def ask(self, key: ApiKey, version: int, **fields: object) -> Message:
        received = await self.send(key, version, **fields)
        assert received, self.log
        return decode_response(key, version, received[4:])[1]

    async def begin(self, mechanism: str = "PLAIN") -> Message:
        return await self.ask(HANDSHAKE, 1, mechanism=mechanism)

    async def log_in(self, user: str = "alice", password: str = "a") -> Message:
        assert (await self.begin()).error_code == ErrorCode.none
        return await self.ask(AUTHENTICATE, 1, auth_bytes=PlainClient(user, password).begin())

    async def is_served(self) -> bool:
        received = await self.send(METADATA, 12, topics=(), allow_auto_topic_creation=False)
        assert received in (b"", SERVED)
        return received == SERVED


def session(test: Callable[[Client], Awaitable[None]]) -> Callable[[], None]:
    """Run the test with the client of a session that has just begun."""

    def run() -> None:
        async def main() -> None:
            client = Client()
            answer = await client.log_in()
            assert answer.session_lifetime.total_seconds() * 1000 == LIFETIME_MS
            await test(client)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


def test_a_turn_of_a_login_is_named_after_its_request() -> None:
    async def main() -> None:
        client = Client()
        await client.begin()
        assert client.connection.kind == "SaslHandshake"
        await client.ask(AUTHENTICATE, 1, auth_bytes=PlainClient("alice", "a").begin())
        assert client.connection.kind == "SaslAuthenticate"
        bare = Client()
        await bare.ask(HANDSHAKE, 0, mechanism="PLAIN")
        message = PlainClient("alice", "a").begin()
        await bare.send_bytes(len(message).to_bytes(4, "big") + message)
        assert bare.connection.kind == "SaslAuthenticate"

    asyncio.run(main())


@session
async def test_requests_are_served_until_the_end_and_the_next_one_ends_the_connection(client: Client) -> None:
    client.clock.now_ms += LIFETIME_MS
    assert await client.is_served()
    client.clock.now_ms += 1
    assert not await client.is_served()
    assert client.transport.ended
    assert "has expired" in client.log[0]


@session
async def test_a_login_begins_the_next_session_even_after_the_end(client: Client) -> None:
    for _ in range(3):
        client.clock.now_ms += LIFETIME_MS + 1
        assert (await client.log_in()).error_code == ErrorCode.none
        client.clock.now_ms += LIFETIME_MS
        assert await client.is_served()
    assert client.connection.context.principal.name == "alice"


@session
async def test_a_client_may_begin_again_at_once_but_then_only_after_a_second(client: Client) -> None:
    assert (await client.log_in()).error_code == ErrorCode.none
    client.clock.now_ms += 999
    assert await client.send(HANDSHAKE, 1, mechanism="PLAIN") == SERVED, "as one that need not"
    client.clock.now_ms += 1
    assert (await client.log_in()).error_code == ErrorCode.none


@session
async def test_a_broker_that_has_proved_itself_logs_in_again_as_the_same_user(client: Client) -> None:
    context = client.connection.context
    proved = Principal(BROKER, "2")
    client.connection.context = replace(context, broker_id=2, principal=proved)
    for _ in range(2):
        assert (await client.log_in()).error_code == ErrorCode.none
        assert client.connection.context.principal == proved
        client.clock.now_ms += LIFETIME_MS
        assert await client.is_served()


@session
async def test_the_principal_may_not_change(client: Client) -> None:
    answer = await client.log_in("bob", "b")
    assert answer.error_code == ErrorCode.sasl_authentication_failed
    assert answer.error_message == (
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert client.transport.ended
    assert client.connection.context.principal.name == "alice"


@session
async def test_the_mechanism_may_not_change(client: Client) -> None:
    assert (await client.begin("SCRAM-SHA-256")).error_code == ErrorCode.none, "as in Kafka"
    assert client.transport.ended


async def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    client = Client()
    answer = await client.begin("SCRAM-SHA-512")
    assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
    assert answer.mechanisms == SETTINGS.mechanisms
    assert client.transport.ended


@session
async def test_a_wrong_password_ends_the_connection(client: Client) -> None:
    answer = await client.log_in("alice", "wrong")
    assert answer.error_code == ErrorCode.sasl_authentication_failed
    assert client.transport.ended


@pytest.mark.parametrize("key", [METADATA, ApiKey.API_VERSIONS, HANDSHAKE])
def test_nothing_else_is_served_in_the_middle(key: ApiKey) -> None:
    fields = {METADATA: {"topics": ()}, HANDSHAKE: {"mechanism": "PLAIN"}}.get(key, {})

    @session
    async def run(client: Client) -> None:
        await client.begin()
        assert await client.send(key, 0, **fields) == b""
        assert client.transport.ended

    run()


@session
async def test_a_login_that_is_begun_and_not_finished_ends_the_connection(client: Client) -> None:
    client.listener.settings = replace(SETTINGS, timeout_ms=20)
    await client.begin()
    await becomes(lambda: client.transport.ended, "the connection is closed")
    assert "has not authenticated" in client.log[0]


def test_a_connection_counts_as_unauthenticated_until_its_first_login_and_never_again() -> None:
    async def main() -> None:
        client = Client()
        assert not client.listener.unauthenticated.take("127.0.0.1")
        await client.log_in()
        assert client.listener.unauthenticated.take("127.0.0.1")
        await client.begin()
        client.connection.connection_lost(None)
        assert not client.listener.unauthenticated.take("127.0.0.1"), "it is still the other one's"

    asyncio.run(main())


def test_a_session_without_an_end_is_handed_to_the_dispatcher_itself() -> None:
    async def main() -> None:
        client = Client(replace(SETTINGS, max_reauth_ms={}))
        assert (await client.log_in()).session_lifetime.total_seconds() == 0
        client.clock.now_ms += 10**12
        assert await client.is_served()
        assert await client.send(HANDSHAKE, 1, mechanism="PLAIN") == SERVED

    asyncio.run(main())


@pytest.mark.parametrize("handshake", [0, 1])
def test_the_first_login_by_a_token_computes_off_the_event_loop(
    handshake: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the clients of thousands of tokens log in, each for milliseconds of computing."""
    image, key, threads = ClusterImage(), TokenKey("key"), []
    token = DelegationToken(owner="User:alice", requester="User:a", issued_ms=0, max_ms=9**9, expires_ms=9**9)
    image.tokens.apply(DelegationTokenChanged(id="id", token=token))

    def computed(*given: Any) -> ScramCredential:
        threads.append(threading.current_thread())
        return login_credential(*given)

    monkeypatch.setattr(known_tokens, "login_credential", computed)

    async def log_in(client: Client) -> None:
        scram = ScramClient(
            ScramMechanism.SHA_256, "id", password_of(key.hmac_of("id")), "nonce", by_token=True
        )
        await client.ask(HANDSHAKE, handshake, mechanism="SCRAM-SHA-256")
        message: bytes | None = scram.begin()
        while message is not None:
            message = scram.respond(await exchanged(client, message))
        assert client.connection.context.by_token
        assert await client.is_served()

    async def exchanged(client: Client, message: bytes) -> bytes:
        request = encode_request(7, "test", api(AUTHENTICATE, 1).request(auth_bytes=message))
        sent = request if handshake else len(message).to_bytes(4, "big") + message
        client.transport.sent = b""
        client.connection.get_buffer(-1)[: len(sent)] = sent
        client.connection.buffer_updated(len(sent))
        await becomes(lambda: bool(client.transport.sent), "the message is answered")
        received = client.transport.sent[4:]
        return decode_response(AUTHENTICATE, 1, received)[1].auth_bytes if handshake else received

    async def main() -> None:
        tokens: list[KnownTokens] = []

        def known(clock: Any) -> KnownTokens:
            tokens.append(KnownTokens(key, TokenLifetimes(9, 9), lambda: image, clock))
            return tokens[0]

        await log_in(Client(tokens=known))
        await log_in(Client(tokens=lambda _: tokens[0]))
        assert len(threads) == 1, "once for each token and mechanism"
        assert threads[0] is not threading.current_thread()

    asyncio.run(main())


def test_a_login_by_no_token_computes_nothing() -> None:
    tokens = KnownTokens(TokenKey("key"), TokenLifetimes(9, 9), ClusterImage, ManualClock())
    assert tokens.work_before_login(ScramMechanism.SHA_256, "id") is None
    assert tokens.login(ScramMechanism.SHA_256, "id") is None
