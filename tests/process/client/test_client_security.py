"""Nilometer's own client and command line, by each protocol and mechanism."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nilometer
from nilometer.client.settings import MODULES
from nilometer.wire.errors import ErrorCode, KafkaError
from support.authority import Authority
from support.brokers.sasl_broker import MECHANISMS, PASSWORDS, SaslBroker, sasl_broker
from support.ports import HOST, free_ports

TOPIC = "secured"
WAYS = [("SSL", None), *((p, m) for p in ("SASL_PLAINTEXT", "SASL_SSL") for m in MECHANISMS)]


class Secured:
    def __init__(self, broker: SaslBroker, authority: Authority, key: Path, ports: dict[str, int]) -> None:
        self.broker, self.authority, self.key = broker, authority, key
        self.ports = ports | {"SASL_PLAINTEXT": int(broker.bootstrap.rpartition(":")[2])}

    def bootstrap(self, protocol: str) -> str:
        return f"{HOST}:{self.ports[protocol]}"

    def settings(
        self, protocol: str, mechanism: str | None, password: str = PASSWORDS["alice"]
    ) -> dict[str, str]:
        settings = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            settings["ssl.truststore.type"] = "PEM"
            settings["ssl.truststore.location"] = str(self.authority.certificate)
        if protocol == "SSL":
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.key)}
        if mechanism is not None:
            module = f'{MODULES[mechanism]} required username="alice" password="{password}";'
            settings |= {"sasl.mechanism": mechanism, "sasl.jaas.config": module}
        return settings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "authority")
    ports = dict(zip(("SSL", "SASL_SSL"), free_ports(2), strict=True))
    tls = {
        "ssl.keystore.location": str(authority.issue("broker", "/CN=broker")),
        "ssl.keystore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.truststore.type": "PEM",
        "ssl.client.auth": "required",
    }
    with sasl_broker(folder / "data", tls, ports) as broker:
        yield Secured(broker, authority, authority.issue("client", "/CN=client"), ports)


def topics_of(bootstrap: str, settings: dict[str, str]) -> list[str]:
    async def ask() -> list[str]:
        async with nilometer.connect(bootstrap, settings=settings) as kafka:
            await kafka.send(TOPIC, b"a record")
            return list(await kafka.admin.topics())

    return asyncio.run(ask())


@pytest.mark.quick
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_the_client_connects_with_the_right_credentials(
    secured: Secured, protocol: str, mechanism: str | None
) -> None:
    assert TOPIC in topics_of(secured.bootstrap(protocol), secured.settings(protocol, mechanism))


@pytest.mark.quick
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_an_error_at_once(secured: Secured, mechanism: str) -> None:
    with pytest.raises(KafkaError) as refused:
        topics_of(secured.bootstrap("SASL_PLAINTEXT"), secured.settings("SASL_PLAINTEXT", mechanism, "wrong"))
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    assert "wrong" not in str(refused.value)


def test_a_certificate_for_another_host_is_refused_unless_that_is_switched_off(secured: Secured) -> None:
    settings = secured.settings("SASL_SSL", "PLAIN")
    key = Path(secured.broker.broker._settings["ssl.keystore.location"])
    good = key.read_text()
    try:
        secured.authority.issue("broker", "/CN=broker", hosts="DNS:elsewhere.example")
        with pytest.raises(KafkaError, match="certificate is not accepted"):
            topics_of(secured.bootstrap("SASL_SSL"), settings)
        unchecked = {**settings, "ssl.endpoint.identification.algorithm": ""}
        assert TOPIC in topics_of(secured.bootstrap("SASL_SSL"), unchecked)
    finally:
        key.write_text(good)


def test_an_authority_that_is_not_trusted_is_refused(secured: Secured, tmp_path: Path) -> None:
    other = str(Authority(tmp_path).certificate)
    settings = {**secured.settings("SASL_SSL", "PLAIN"), "ssl.truststore.location": other}
    with pytest.raises(KafkaError, match="certificate is not accepted"):
        topics_of(secured.bootstrap("SASL_SSL"), settings)


def test_commands_connect_by_their_config_file(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"

    def run(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "nilometer.cli", *arguments)
        options = ("--bootstrap-server", secured.bootstrap("SASL_SSL"), "--command-config", str(file))
        done = subprocess.run(
            (*command, *options), check=False, input=input, capture_output=True, text=True, timeout=120
        )
        assert PASSWORDS["alice"] not in done.stdout + done.stderr
        return done

    def write(settings: dict[str, str]) -> None:
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    write(secured.settings("SASL_SSL", "SCRAM-SHA-512"))
    created = run("topic", "create", "by-command")
    assert created.returncode == 0, created.stderr
    assert run("produce", "by-command", input="one\ntwo\n").returncode == 0
    read = run("consume", "by-command", "--from-beginning", "--count", "2")
    assert (read.returncode, read.stdout.split()) == (0, ["one", "two"])
    healthy = run("status", "--json", "--timeout", "30")
    assert (healthy.returncode, json.loads(healthy.stdout)["health"]) == (0, "healthy"), healthy.stdout
    for command in ("broker list", "broker config 1", "topic config by-command", "topic offsets by-command"):
        done = run(*command.split())
        assert done.returncode == 0, (command, done.stderr)
    shown = run("replicas", "--topic", "by-command", "--json", "--timeout", "30")
    assert [each["failure"] for each in json.loads(shown.stdout)["replicas"]] == [None], shown.stdout
    write(secured.settings("SASL_SSL", "SCRAM-SHA-512", "wrong"))
    refused = run("topic", "list")
    assert refused.returncode == 1
    assert "SASL_AUTHENTICATION_FAILED" in refused.stderr
    unknown = run("status", "--timeout", "30")
    assert unknown.returncode == 4 and "uthentication failed" in unknown.stdout, unknown.stdout
    write({"security.protocol": "KERBEROS"})
    assert "security.protocol" in run("topic", "list").stderr
