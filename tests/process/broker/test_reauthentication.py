"""Sessions with an end (KIP-368), of a broker process. test_sasl_sessions.py has what else ends them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from nilometer.security.sasl import PlainClient
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import Message
from support.brokers.oauth_broker import begin, is_served, oauth_settings, outcome, present
from support.brokers.sasl_broker import PASSWORDS, SaslBroker, sasl_broker
from support.eventually import eventually
from support.issuer import claims, jwks, rsa_key, signed
from support.wire.wire_peer import ConnectionEnded, WirePeer

AUTHENTICATE, HANDSHAKE = ApiKey.SASL_AUTHENTICATE, ApiKey.SASL_HANDSHAKE
PLAIN_LIFETIME_MS = 3_000
TOKEN_LIFETIME_MS = 60_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    folder: Path = tmp_path_factory.mktemp("reauthentication")
    (folder / "keys.json").write_bytes(jwks(one=rsa_key()))
    prefix = "listener.name.sasl_plaintext"
    more = {
        f"{prefix}.plain.connections.max.reauth.ms": str(PLAIN_LIFETIME_MS),
        f"{prefix}.oauthbearer.connections.max.reauth.ms": str(TOKEN_LIFETIME_MS),
    }
    with sasl_broker(folder / "data", oauth_settings(f"file://{folder / 'keys.json'}", more)) as broker:
        yield broker


def log_in(peer: WirePeer, user: str = "alice", version: int = 2) -> Message:
    begin(peer, "PLAIN")
    return peer.ask(AUTHENTICATE, version, auth_bytes=PlainClient(user, PASSWORDS[user]).begin())


def lifetime_ms(answer: Message) -> float:
    return answer.session_lifetime.total_seconds() * 1000


def token(**changes: object) -> str:
    return signed(rsa_key(), claims(**changes))


def test_the_lifetime_is_the_mechanisms_or_that_of_the_token_if_it_is_shorter(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        assert lifetime_ms(log_in(peer)) == PLAIN_LIFETIME_MS
    with WirePeer(broker.bootstrap) as peer:
        assert lifetime_ms(log_in(peer, version=1)) == PLAIN_LIFETIME_MS
    with WirePeer(broker.bootstrap) as peer:
        assert log_in(peer, version=0).error_code == ErrorCode.none, "version 0 has no lifetime"
    with WirePeer(broker.bootstrap) as peer:
        assert lifetime_ms(present(peer, token())) == TOKEN_LIFETIME_MS
    with WirePeer(broker.bootstrap) as peer:
        assert 0 < lifetime_ms(present(peer, token(exp=int(time.time()) + 40))) < TOKEN_LIFETIME_MS


def test_after_the_end_a_request_ends_the_connection_and_a_login_continues_it(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as idle, WirePeer(broker.bootstrap) as late:
        log_in(late)
        log_in(idle)
        assert is_served(late)

        def is_over() -> bool:
            try:
                return not is_served(idle)
            except ConnectionEnded:
                return True

        eventually(is_over, "the session has expired", timeout_s=60)
        assert "its session has expired" in broker.broker.output
        assert log_in(late).error_code == ErrorCode.none
        assert is_served(late)


def test_requests_sent_before_are_answered_first(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        assert outcome(peer, token()) is ErrorCode.none
        peer.tell(ApiKey.METADATA, 12, topics=(), allow_auto_topic_creation=False)
        peer.tell(HANDSHAKE, 1, mechanism="OAUTHBEARER")
        assert peer.hear(ApiKey.METADATA, 12).controller_id == 1
        assert peer.hear(HANDSHAKE, 1).error_code == ErrorCode.none


def test_librdkafka_goes_on_for_longer_than_a_session(broker: SaslBroker) -> None:
    failures: list[object] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORDS["alice"],
            "log_level": 0,
        }
    )
    sent, ends = 0, time.monotonic() + 2 * PLAIN_LIFETIME_MS / 1000
    while time.monotonic() < ends:
        producer.produce("long", str(sent).encode(), on_delivery=lambda error, _: failures.append(error))
        producer.poll(0.02)
        sent += 1
    assert producer.flush(60) == 0
    assert failures == [None] * sent
