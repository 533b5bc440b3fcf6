"""The SASL listener of a broker process, request by request."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from nilometer.quotas import CLIENT_ID, REQUEST_PERCENTAGE
from nilometer.security.sasl import PlainClient, SaslClient
from nilometer.security.scram import ScramClient, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.brokers.quota_requests import alter, throttle_ms
from support.brokers.sasl_broker import (
    MECHANISMS,
    PASSWORDS,
    SaslBroker,
    deletion,
    sasl_broker,
    upsertion,
)
from support.eventually import eventually
from support.ports import HOST
from support.wire.wire_peer import ConnectionEnded, WirePeer

HANDSHAKE, AUTHENTICATE = ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE
RECEIVE_BYTES_MAX = 20_000
UNAUTHENTICATED_MAX = 5
FAILED = ErrorCode.sasl_authentication_failed


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    limits = {
        "sasl.server.max.receive.size": str(RECEIVE_BYTES_MAX),
        "nilometer.unauthenticated.connections.max.per.ip": str(UNAUTHENTICATED_MAX),
        "nilometer.authentication.timeout.ms": "3000",
    }
    with sasl_broker(tmp_path_factory.mktemp("sasl") / "data", limits) as broker:
        yield broker


def client_of(mechanism: str, user: str, password: str) -> SaslClient:
    if mechanism == "PLAIN":
        return PlainClient(user, password)
    return ScramClient(ScramMechanism(mechanism), user, password, "aNonceOfThisTest")


def log_in(peer: WirePeer, mechanism: str, user: str, password: str) -> ErrorCode:
    """Go through the exchange; return the error code of its last response."""
    answer = peer.ask(HANDSHAKE, 1, mechanism=mechanism)
    assert (answer.error_code, tuple(answer.mechanisms)) == (ErrorCode.none, MECHANISMS)
    client = client_of(mechanism, user, password)
    message: bytes | None = client.begin()
    while message is not None:
        answer = peer.ask(AUTHENTICATE, 2, auth_bytes=message)
        if answer.error_code != ErrorCode.none:
            assert answer.error_message
            return answer.error_code
        message = client.respond(answer.auth_bytes)
    assert client.is_complete
    return ErrorCode.none


def can_be_used(peer: WirePeer) -> bool:
    return peer.ask(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False).controller_id == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", PASSWORDS)
def test_a_user_with_the_password_is_served(broker: SaslBroker, mechanism: str, user: str) -> None:
    with WirePeer(broker.bootstrap) as peer:
        found = {each.api_key for each in peer.ask(ApiKey.API_VERSIONS, 0).api_keys}
        assert {HANDSHAKE, AUTHENTICATE, ApiKey.ALTER_USER_SCRAM_CREDENTIALS} <= found
        assert log_in(peer, mechanism, user, PASSWORDS[user]) is ErrorCode.none
        assert can_be_used(peer)
        assert peer.ask(HANDSHAKE, 1, mechanism=mechanism).error_code == ErrorCode.illegal_sasl_state
        assert peer.ask(AUTHENTICATE, 2, auth_bytes=b"").error_code == ErrorCode.illegal_sasl_state


def test_what_a_client_sends_before_it_has_authenticated_counts_for_no_quota(broker: SaslBroker) -> None:
    """Otherwise any peer could use up the time of a client whose id is known."""
    quota = {REQUEST_PERCENTAGE: 1e-6}  # less than any request takes
    alter(broker.open_bootstrap, {CLIENT_ID: "known"}, **quota)
    try:
        with WirePeer(broker.bootstrap, "known") as peer:
            for _ in range(3):
                assert throttle_ms(peer.ask(ApiKey.API_VERSIONS, 1)) == 0
            assert log_in(peer, "PLAIN", "alice", PASSWORDS["alice"]) is ErrorCode.none
            assert throttle_ms(peer.ask(ApiKey.API_VERSIONS, 1)) > 0
    finally:
        alter(broker.open_bootstrap, {CLIENT_ID: "known"}, **dict.fromkeys(quota))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", "alice-secret")])
def test_others_are_refused_once_and_the_log_names_them_without_secrets(
    broker: SaslBroker, mechanism: str, user: str, password: str
) -> None:
    with WirePeer(broker.bootstrap) as peer:
        port = peer.socket.getsockname()[1]
        assert log_in(peer, mechanism, user, password) is FAILED
        assert peer.is_ended()
    line = f"Authentication failed: {HOST}:{port}, listener SASL_PLAINTEXT, mechanism {mechanism}: "
    eventually(lambda: line in broker.broker.output, "the failure is logged")
    assert not any(secret in broker.broker.output for secret in (*PASSWORDS.values(), password + '"'))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_messages_without_headers_follow_a_handshake_of_version_0(broker: SaslBroker, mechanism: str) -> None:
    with WirePeer(broker.bootstrap) as peer:
        assert peer.ask(HANDSHAKE, 0, mechanism=mechanism).error_code == ErrorCode.none
        client = client_of(mechanism, "alice", PASSWORDS["alice"])
        message: bytes | None = client.begin()
        while message is not None:
            peer.tell_bytes(message)
            message = client.respond(peer.receive())
        assert can_be_used(peer)
    with WirePeer(broker.bootstrap) as peer:
        peer.ask(HANDSHAKE, 0, mechanism="PLAIN")
        peer.tell_bytes(b"\0alice\0wrong")
        assert peer.is_ended()


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        answer = peer.ask(HANDSHAKE, 1, mechanism="GSSAPI")
        assert answer.error_code == ErrorCode.unsupported_sasl_mechanism
        assert tuple(answer.mechanisms) == MECHANISMS
        assert peer.is_ended()


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (ApiKey.METADATA, 12, {"topics": ()}),
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": (), "upsertions": ()}),
        (AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0alice-secret"}),
    ],
)
def test_any_other_request_ends_the_connection(
    broker: SaslBroker, key: ApiKey, version: int, fields: dict[str, object]
) -> None:
    with WirePeer(broker.bootstrap) as peer, pytest.raises(ConnectionEnded):
        peer.ask(key, version, **fields)
    with WirePeer(broker.bootstrap) as peer:
        peer.ask(HANDSHAKE, 1, mechanism="PLAIN")
        if key != AUTHENTICATE:
            with pytest.raises(ConnectionEnded):
                peer.ask(key, version, **fields)


def test_requests_sent_with_a_wrong_password_are_never_processed(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        peer.ask(HANDSHAKE, 1, mechanism="PLAIN")
        peer.tell(AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
        peer.tell(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
        assert peer.hear(AUTHENTICATE, 2).error_code == FAILED
        assert peer.is_ended()


def test_a_large_request_is_refused_before_authentication_and_taken_after(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer, pytest.raises(ConnectionEnded):
        peer.tell_bytes(bytes(RECEIVE_BYTES_MAX + 1))
        peer.receive()
    with WirePeer(broker.bootstrap, "x" * (RECEIVE_BYTES_MAX + 1 - 10_000)) as peer:
        log_in(peer, "PLAIN", "alice", PASSWORDS["alice"])
        keys = tuple(f"{number:0200}" for number in range(200))
        answer = peer.ask(ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=keys)
        assert len(answer.coordinators) == len(keys)


def test_connections_that_do_not_authenticate_are_few_and_end_soon(broker: SaslBroker) -> None:
    idle = [WirePeer(broker.bootstrap) for _ in range(UNAUTHENTICATED_MAX)]
    with WirePeer(broker.bootstrap) as one_more:
        assert one_more.is_ended()
    for peer in idle:
        assert peer.is_ended(), "after nilometer.authentication.timeout.ms"
        peer.close()
    with WirePeer(broker.bootstrap) as peer:
        assert log_in(peer, "PLAIN", "alice", PASSWORDS["alice"]) is ErrorCode.none
        others = [WirePeer(broker.bootstrap) for _ in range(UNAUTHENTICATED_MAX - 1)]
        assert can_be_used(peer), "an authenticated one does not count"
        for other in others:
            other.close()


def test_a_connection_reset_before_authentication_is_no_longer_counted(broker: SaslBroker) -> None:
    for _ in range(3 * UNAUTHENTICATED_MAX):
        with WirePeer(broker.bootstrap) as peer:
            peer.ask(ApiKey.API_VERSIONS, 0)
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def is_served() -> bool:
        with WirePeer(broker.bootstrap) as peer:
            try:
                return log_in(peer, "PLAIN", "alice", PASSWORDS["alice"]) is ErrorCode.none
            except ConnectionEnded:
                return False

    eventually(is_served, "the ended connections are not counted any more")


def test_a_user_is_changed_and_deleted(broker: SaslBroker) -> None:
    mechanism = ScramMechanism.SHA_256

    def outcome(password: str) -> ErrorCode:
        with WirePeer(broker.bootstrap) as peer:
            return log_in(peer, mechanism.value, "carol", password)

    assert outcome("first") is FAILED
    broker.alter_users(upsertions=(upsertion("carol", "first", mechanism, 5000),))
    assert outcome("first") is ErrorCode.none
    broker.alter_users(upsertions=(upsertion("carol", "second", mechanism, 6000),))
    assert (outcome("first"), outcome("second")) == (FAILED, ErrorCode.none)
    broker.broker.stop()
    broker.broker.start()
    assert outcome("second") is ErrorCode.none, "it is in the metadata log"
    assert broker.alter_users(deletions=(deletion("carol", mechanism),)) == [ErrorCode.none]
    assert outcome("second") is FAILED


def test_invalid_changes_are_refused_by_user(broker: SaslBroker) -> None:
    sha_256, sha_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
    unacceptable = ErrorCode.unacceptable_credential
    for wanted, error in (
        ((upsertion("dave", "x", sha_256, 4095),), unacceptable),
        ((upsertion("dave", "x", sha_256, 16_385),), unacceptable),
        ((upsertion("", "x", sha_256),), unacceptable),
        ((upsertion("dave", "x", sha_256), upsertion("dave", "y", sha_256)), ErrorCode.duplicate_resource),
        ((upsertion("dave", "x", sha_256), upsertion("dave", "y", sha_512)), ErrorCode.duplicate_resource),
    ):
        assert broker.alter_users(upsertions=wanted) == [error]
    missing = broker.alter_users(deletions=(deletion("dave", sha_256), deletion("alice", sha_256)))
    assert missing == [ErrorCode.none, ErrorCode.resource_not_found]
    with WirePeer(broker.open_bootstrap) as peer:
        answer = peer.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    shown = {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }
    assert shown == {"alice": [(2, 4096)], "bob": [(1, 4096), (2, 4096)]}
