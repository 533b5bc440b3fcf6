"""A listener with SASL/OAUTHBEARER: tokens of an issuer whose keys are fetched, and hostile tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from support.authority import Authority
from support.brokers.oauth_broker import begin, is_served, oauth_settings, outcome, present
from support.brokers.sasl_broker import SaslBroker, sasl_broker
from support.eventually import eventually
from support.issuer import claims, ec_key, jwks, rsa_key, signed
from support.issuer_server import IssuerServer
from support.wire.wire_peer import ConnectionEnded, WirePeer

FAILED = ErrorCode.sasl_authentication_failed
HOUR_S = 3600


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def issuer(authority: Authority) -> Iterator[IssuerServer]:
    key = authority.issue("issuer", "/CN=issuer")
    with IssuerServer(jwks(one=rsa_key()), key=key) as server:
        yield server


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, issuer: IssuerServer
) -> Iterator[SaslBroker]:
    options = f'ssl.truststore.type="PEM" ssl.truststore.location="{authority.certificate}"'
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    settings = oauth_settings(
        issuer.keys_url,
        {"listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f"{module} required {options};"},
    )
    with sasl_broker(tmp_path_factory.mktemp("oauth") / "data", settings) as broker:
        yield broker


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_good_token_is_served_until_it_expires(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        answer = present(peer, signed(rsa_key(), claims()))
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.none, b"")
        assert 0 < answer.session_lifetime.total_seconds() <= HOUR_S
        assert is_served(peer)


def test_new_keys_are_fetched_for_the_first_token_that_needs_them_and_rarely(
    broker: SaslBroker, issuer: IssuerServer
) -> None:
    def is_accepted(token: str) -> bool:
        with WirePeer(broker.bootstrap) as peer:
            return outcome(peer, token) is ErrorCode.none

    issuer.document = jwks(one=rsa_key(), two=rsa_key(1))
    token = signed(rsa_key(1), claims(sub="bob"), kid="two")
    eventually(lambda: is_accepted(token), "the new key is known", timeout_s=60)
    before = issuer.fetches
    began = time.monotonic()
    for number in range(12):
        assert not is_accepted(signed(rsa_key(1), claims(), kid=f"made-up-{number}"))
    assert issuer.fetches - before <= 1 + (time.monotonic() - began) / 10


HOSTILE = {
    "expired": lambda: signed(rsa_key(), claims(iat=1, exp=int(time.time()) - HOUR_S)),
    "not valid yet": lambda: signed(
        rsa_key(), claims(nbf=int(time.time()) + HOUR_S, exp=int(time.time()) * 2)
    ),
    "of another issuer": lambda: signed(rsa_key(), claims(iss="https://other.example")),
    "for another audience": lambda: signed(rsa_key(), claims(aud="other")),
    "without a subject": lambda: signed(rsa_key(), claims(sub=None)),
    "of another key": lambda: signed(rsa_key(1), claims()),
    "of an unknown key": lambda: signed(rsa_key(1), claims(), kid="unknown"),
    "of another type of key": lambda: signed(ec_key(), claims(), alg="ES256"),
    "not signed": lambda: f"{encoded({'alg': 'none', 'kid': 'one'})}.{encoded(claims())}.",
    "signed by a shared secret": lambda: (
        f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(claims())}.AAAA"
    ),
    "no token": lambda: "a.b.c",
    "large": lambda: "a" * 400_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_any_other_token_is_refused_and_the_log_does_not_show_it(broker: SaslBroker, kind: str) -> None:
    token = HOSTILE[kind]()
    with WirePeer(broker.bootstrap) as peer:
        port = peer.socket.getsockname()[1]
        line = f":{port}, listener SASL_PLAINTEXT, mechanism OAUTHBEARER: "
        before = broker.broker.output.count(line)  # a client before may have had the same port
        assert outcome(peer, token) is FAILED
        assert peer.is_ended()
    eventually(lambda: broker.broker.output.count(line) > before, "the failure is logged")
    assert broker.broker.output.count(line) == before + 1
    assert not any(part[-30:] in broker.broker.output for part in token.split(".") if len(part) > 1)
    assert "Traceback" not in broker.broker.output


def test_a_token_above_the_largest_request_ends_the_connection(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        begin(peer)
        with pytest.raises((ConnectionEnded, OSError)):
            peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=bytes(600_000))


def test_a_failed_client_that_goes_away_is_logged_too(broker: SaslBroker) -> None:
    with WirePeer(broker.bootstrap) as peer:
        port = peer.socket.getsockname()[1]
        assert present(peer, "x").auth_bytes
    line = f":{port}, listener SASL_PLAINTEXT, mechanism OAUTHBEARER: the token is no signed JSON web token"
    eventually(lambda: line in broker.broker.output, "the failure is logged")


def test_librdkafka_logs_in_by_tokens(broker: SaslBroker) -> None:
    def admin(token: str, errors: list[confluent_kafka.KafkaError]) -> confluent_kafka.admin.AdminClient:
        return confluent_kafka.admin.AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "oauth_cb": lambda _config: (token, time.time() + HOUR_S),
                "error_cb": errors.append,
                "log_level": 0,
            }
        )

    errors: list[confluent_kafka.KafkaError] = []
    good = admin(signed(rsa_key(), claims()), errors)
    good.poll(0)
    assert 1 in good.list_topics(timeout=60).brokers
    bad = admin(signed(rsa_key(), claims(aud="other")), errors)
    bad.poll(0)
    with pytest.raises(confluent_kafka.KafkaException):
        bad.list_topics(timeout=3)

    def is_refused() -> bool:
        bad.poll(0.1)
        return any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors)

    eventually(is_refused, "the client is told that its token is refused", 60)


def test_keys_in_a_file_are_read_again_when_it_changes(tmp_path: Path) -> None:
    document = tmp_path / "keys.json"
    document.write_text("not yet")
    with sasl_broker(tmp_path / "data", oauth_settings(f"file://{document}")) as broker:

        def is_accepted(number: int) -> bool:
            with WirePeer(broker.bootstrap) as peer:
                return outcome(peer, signed(rsa_key(number), claims())) is ErrorCode.none

        assert not is_accepted(0)
        document.write_bytes(jwks(one=rsa_key()))
        assert is_accepted(0)
        document.write_bytes(jwks(one=rsa_key(1), another=rsa_key()))
        assert (is_accepted(0), is_accepted(1)) == (False, True)
        document.write_text("damaged, and the former keys stay in use")
        assert is_accepted(1)
        assert "cannot be read" in broker.broker.output


def test_a_broker_starts_while_its_issuer_does_not_answer(tmp_path: Path) -> None:
    with IssuerServer(jwks(one=rsa_key())) as issuer:
        issuer.status = 503
        settings = oauth_settings(
            issuer.keys_url, {"sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "300"}
        )
        with sasl_broker(tmp_path / "data", settings) as broker:
            assert "The keys for tokens cannot be read" in broker.broker.output
            with WirePeer(broker.bootstrap) as peer:
                assert outcome(peer, signed(rsa_key(), claims())) is FAILED
            issuer.status = 200

            def is_accepted() -> bool:
                with WirePeer(broker.bootstrap) as peer:
                    return outcome(peer, signed(rsa_key(), claims())) is ErrorCode.none

            eventually(is_accepted, "the keys are fetched", timeout_s=60)
