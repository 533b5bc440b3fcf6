"""Clients of other projects, by each protocol and mechanism, with right, wrong and no credentials."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.errors
import kafka.structs
import pytest

from support.authority import Authority
from support.brokers.sasl_broker import MECHANISMS, PASSWORDS, SaslBroker, sasl_broker
from support.kafka.java_driver import JavaDriver, JavaError
from support.ports import HOST, free_ports

USER = "alice"
TOPIC = "secured"
TIMEOUT_S = 60


class Secured:
    def __init__(self, folder: Path, broker: SaslBroker, authority: Authority, ports: dict[str, int]) -> None:
        self.folder = folder
        self.broker = broker
        self.authority = authority
        self.ports = ports
        self.key = authority.issue("client", "/O=Nilometer/CN=client")

    def bootstrap(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "authority")
    tls_port, sasl_tls_port = free_ports(2)
    with sasl_broker(
        folder / "data",
        {
            "ssl.keystore.location": str(authority.issue("broker", "/CN=broker")),
            "ssl.keystore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            "ssl.truststore.type": "PEM",
            "ssl.client.auth": "required",
        },
        {"SSL": tls_port, "SASL_SSL": sasl_tls_port},
    ) as broker:
        ports = {"SSL": tls_port, "SASL_SSL": sasl_tls_port}
        ports["SASL_PLAINTEXT"] = int(broker.bootstrap.rpartition(":")[2])
        secured = Secured(folder, broker, authority, ports)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.open_bootstrap})
        producer.produce(TOPIC, b"first")
        assert producer.flush(TIMEOUT_S) == 0
        yield secured


def librdkafka(secured: Secured, protocol: str, mechanism: str | None, password: str) -> dict[str, str]:
    config = {"bootstrap.servers": secured.bootstrap(protocol), "security.protocol": protocol}
    if protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(secured.authority.certificate)
    if protocol == "SSL" and password:
        config |= {"ssl.key.location": str(secured.key), "ssl.certificate.location": str(secured.key)}
    if mechanism is not None:
        config |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
    return config


def python_options(
    secured: Secured, protocol: str, mechanism: str | None, password: str
) -> dict[str, object]:
    options: dict[str, object] = {
        "bootstrap_servers": secured.bootstrap(protocol),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        with_key = protocol == "SSL" and password
        options["ssl_context"] = secured.authority.context(secured.key if with_key else None)
    if mechanism is not None:
        options |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
        }
    return options


WAYS = [("SSL", None), *((p, m) for p in ("SASL_PLAINTEXT", "SASL_SSL") for m in MECHANISMS)]
ways = pytest.mark.parametrize(("protocol", "mechanism"), WAYS)


def right(mechanism: str | None) -> str:
    return "with a key" if mechanism is None else PASSWORDS[USER]


def wrong(mechanism: str | None) -> str:
    return "" if mechanism is None else "wrong"


@ways
def test_librdkafka(secured: Secured, protocol: str, mechanism: str | None) -> None:
    admin = confluent_kafka.admin.AdminClient(librdkafka(secured, protocol, mechanism, right(mechanism)))
    assert TOPIC in admin.list_topics(timeout=TIMEOUT_S).topics
    errors: list[confluent_kafka.KafkaError] = []
    config = librdkafka(secured, protocol, mechanism, wrong(mechanism))
    refused = confluent_kafka.Producer({**config, "error_cb": errors.append, "log_level": 0})
    with pytest.raises(confluent_kafka.KafkaException):
        refused.list_topics(timeout=3)
    refused.poll(0)
    if mechanism is not None:
        assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in errors}


@ways
def test_aiokafka(secured: Secured, protocol: str, mechanism: str | None) -> None:
    async def send(password: str) -> int:
        options = python_options(secured, protocol, mechanism, password)
        producer = aiokafka.AIOKafkaProducer(**options, request_timeout_ms=TIMEOUT_S * 1000)
        try:
            await producer.start()
            return (await producer.send_and_wait(TOPIC, b"from aiokafka")).offset
        finally:
            await producer.stop()

    assert asyncio.run(send(right(mechanism))) > 0
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(send(wrong(mechanism)))


@ways
def test_kafka_python(secured: Secured, protocol: str, mechanism: str | None) -> None:
    def end_of(password: str) -> int:
        options = python_options(secured, protocol, mechanism, password)
        patience_ms = 60_000 if password == right(mechanism) else 3_000
        options["bootstrap_timeout_ms"] = patience_ms
        consumer = kafka.KafkaConsumer(**options)
        try:
            partition = kafka.structs.TopicPartition(TOPIC, 0)
            return consumer.end_offsets([partition])[partition]
        finally:
            consumer.close()

    assert end_of(right(mechanism)) > 0
    with pytest.raises(kafka.errors.KafkaError):
        end_of(wrong(mechanism))


@pytest.mark.java
@ways
def test_java(secured: Secured, java: JavaDriver, protocol: str, mechanism: str | None) -> None:
    def config(password: str) -> dict[str, str]:
        config = {
            "bootstrap.servers": secured.bootstrap(protocol),
            "security.protocol": protocol,
            # Without a key the client tries again until its timeout.
            "default.api.timeout.ms": "20000" if password else "3000",
            "request.timeout.ms": "10000" if password else "3000",
        }
        if protocol.endswith("SSL"):
            config |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(secured.authority.certificate),
            }
        if protocol == "SSL" and password:
            config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(secured.key)}
        if mechanism is not None:
            kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
            config["sasl.mechanism"] = mechanism
            config["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{kind}LoginModule required "
                f'username="{USER}" password="{password}";'
            )
        return config

    assert TOPIC in java.run("list_topics", config=config(right(mechanism)))
    with pytest.raises(JavaError) as refused:
        java.run("list_topics", config=config(wrong(mechanism)))
    if mechanism is not None:
        assert refused.value.code == "SASL_AUTHENTICATION_FAILED"
