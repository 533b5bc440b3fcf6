"""Clients of other projects that log in by tokens (OAUTHBEARER): right ones, wrong ones, none.

librdkafka: see `tests/process/broker/test_oauthbearer.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.errors
import kafka
import kafka.errors
import kafka.structs
import pytest
from kafka.net.sasl.oauth import AbstractTokenProvider

from support.brokers.oauth_broker import oauth_settings
from support.brokers.sasl_broker import SaslBroker, sasl_broker
from support.brokers.two_brokers import Side
from support.issuer import claims, jwks, rsa_key, signed
from support.issuer_server import CLIENT_ID, CLIENT_SECRET, IssuerServer
from support.kafka.apache_kafka import JVM_SMALL
from support.kafka.java_driver import JavaDriver, JavaError

TOPIC = "tokens"
TIMEOUT_S = 60
MODULES = "org.apache.kafka.common.security.oauthbearer"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"

WRONG = {
    "for another audience": {"aud": "other"},
    "of another issuer": {"iss": "https://other.example"},
    "expired": {"iat": 1, "exp": int(time.time()) - 3600},
}
wrong_tokens = pytest.mark.parametrize("wrong", WRONG)


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerServer]:
    with IssuerServer(jwks(one=rsa_key()), issue=lambda: signed(rsa_key(), claims())) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: IssuerServer) -> Iterator[SaslBroker]:
    folder = tmp_path_factory.mktemp("tokens")
    with sasl_broker(folder / "data", oauth_settings(issuer.keys_url)) as broker:
        admin = Side("admin", broker.open_bootstrap)
        admin.create(TOPIC)
        admin.append(TOPIC, b"first")
        admin.hang_up()
        yield broker


def token(**changes: object) -> str:
    return signed(rsa_key(), claims(**changes))


# ── clients of Python ───────────────────────────────────────────────────────────────────────────────


class Tokens(aiokafka.abc.AbstractTokenProvider):
    def __init__(self, given: str) -> None:
        self._given = given

    async def token(self) -> str:  # type: ignore[override]  # what it overrides is said to return nothing
        return self._given


class BlockingTokens(AbstractTokenProvider):
    def __init__(self, given: str) -> None:
        super().__init__()
        self._given = given

    def token(self) -> str:  # type: ignore[override]
        return self._given


def python_options(broker: SaslBroker, provider: object) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
    }


async def send_by_aiokafka(broker: SaslBroker, given: str) -> int:
    options = python_options(broker, Tokens(given))
    producer = aiokafka.AIOKafkaProducer(**options, request_timeout_ms=TIMEOUT_S * 1000)
    try:
        await producer.start()
        return (await producer.send_and_wait(TOPIC, b"from aiokafka")).offset
    finally:
        await producer.stop()


def test_aiokafka(broker: SaslBroker) -> None:
    assert asyncio.run(send_by_aiokafka(broker, token())) > 0


@wrong_tokens
def test_aiokafka_with_a_wrong_token(broker: SaslBroker, wrong: str) -> None:
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(send_by_aiokafka(broker, token(**WRONG[wrong])))


def end_for_kafka_python(broker: SaslBroker, given: str, patience_ms: int) -> int:
    options = python_options(broker, BlockingTokens(given)) | {"bootstrap_timeout_ms": patience_ms}
    consumer = kafka.KafkaConsumer(**options)
    try:
        partition = kafka.structs.TopicPartition(TOPIC, 0)
        return consumer.end_offsets([partition])[partition]
    finally:
        consumer.close()


def test_kafka_python(broker: SaslBroker) -> None:
    assert end_for_kafka_python(broker, token(), TIMEOUT_S * 1000) > 0


def test_kafka_python_with_a_wrong_token(broker: SaslBroker) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        end_for_kafka_python(broker, token(aud="other"), 3_000)


# ── Java's client ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("java") / "token.jwt"


@pytest.fixture(scope="module")
def java_with_urls(issuer: IssuerServer, token_file: Path) -> Iterator[JavaDriver]:
    """A JVM of its own: which URLs it may read is one of its properties."""
    allowed = f"-D{ALLOWED_URLS}={issuer.token_url},file://{token_file}"
    with JavaDriver((*JVM_SMALL, allowed)) as driver:
        yield driver


def java_config(broker: SaslBroker, url: str, **more: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{MODULES}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{MODULES}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": url,
        "default.api.timeout.ms": "20000",
        "request.timeout.ms": "10000",
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def by_endpoint(broker: SaslBroker, issuer: IssuerServer, secret: str) -> dict[str, str]:
    return java_config(broker, issuer.token_url) | {
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
    }


@pytest.mark.java
def test_java_with_a_token_of_the_issuers_endpoint(
    broker: SaslBroker, issuer: IssuerServer, java_with_urls: JavaDriver
) -> None:
    before = issuer.tokens_issued
    config = by_endpoint(broker, issuer, CLIENT_SECRET)
    assert TOPIC in java_with_urls.run("list_topics", config=config)
    assert issuer.tokens_issued == before + 1
    read = java_with_urls.run("consume", config=config, topic=TOPIC)
    assert read[0]["offset"] == 0


@pytest.mark.java
def test_java_without_a_token(broker: SaslBroker, issuer: IssuerServer, java_with_urls: JavaDriver) -> None:
    """The endpoint gives none, so that no login is sent."""
    failures = broker.broker.output.count("mechanism OAUTHBEARER")
    more = {"sasl.login.retry.backoff.ms": "10", "sasl.login.retry.backoff.max.ms": "20"}
    with pytest.raises(JavaError):
        java_with_urls.run("list_topics", config=by_endpoint(broker, issuer, "wrong") | more)
    assert broker.broker.output.count("mechanism OAUTHBEARER") == failures


@pytest.mark.java
def test_java_with_a_token_in_a_file(
    broker: SaslBroker, token_file: Path, java_with_urls: JavaDriver
) -> None:
    config = java_config(broker, f"file://{token_file}")
    token_file.write_text(token())
    assert TOPIC in java_with_urls.run("list_topics", config=config)
    token_file.write_text(token(aud="other"))
    with pytest.raises(JavaError) as refused:
        java_with_urls.run("list_topics", config=config)
    assert refused.value.code == "SASL_AUTHENTICATION_FAILED"
