"""``kafka-delegation-tokens.sh`` on a listener with authentication, and Java's clients with tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nilometer.security.sasl import PLAIN_MODULE, SCRAM_MODULE
from nilometer.wire.errors import ErrorCode
from support.authorization.prepared import AUTHORIZER
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.token_requests import describe, expire, log_in, token_settings
from support.eventually import eventually
from support.kafka.java_driver import JavaDriver, JavaError
from support.kafka.tool_case import CLASSES
from support.ports import HOST, free_ports
from support.wire.wire_peer import WirePeer

pytestmark = pytest.mark.java
USERS = {"alice": "alice-password", "bob": "bob-password"}
LIFETIME_MS = 4_000
TOKEN = re.compile(r"^(?P<id>[\w-]{22})\s+(?P<hmac>[A-Za-z0-9+/]{86}==)\s+(?P<rest>.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Setup:
    bootstrap: str
    folder: Path
    java: JavaDriver

    def tool(self, *arguments: str, user: str = "alice") -> tuple[int, str]:
        config = self.folder / f"{user}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in self.by_password(user).items()))
        given = ["--bootstrap-server", self.bootstrap, "--command-config", str(config), *arguments]
        told: dict[str, Any] = self.java.run(
            "tool", **{"class": CLASSES["kafka-delegation-tokens.sh"]}, arguments=given, input=""
        )
        return told["status"], told["output"]

    def by_password(self, user: str) -> dict[str, str]:
        module = f'{PLAIN_MODULE} required username="{user}" password="{USERS[user]}";'
        return self._client("PLAIN", module)

    def by_token(self, token_id: str, hmac: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        module = f'{SCRAM_MODULE} required username="{token_id}" password="{hmac}" tokenauth="true";'
        return self._client(mechanism, module)

    def _client(self, mechanism: str, module: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": module,
        }


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("token-tool")
    open_port, port = free_ports(2)
    settings = {
        **token_settings(USERS),
        "listeners": f"PLAINTEXT://{HOST}:{open_port},SASL_PLAINTEXT://{HOST}:{port}",
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS;User:alice",
        "delegation.token.expiry.check.interval.ms": "200",
    }
    with NilometerBroker(folder / "data", settings, open_port) as broker, JavaDriver() as java:
        yield Setup(f"{HOST}:{port}", folder, java)
    assert "Traceback" not in broker.output


def test_the_tool_creates_describes_renews_and_expires(setup: Setup) -> None:
    status, created = setup.tool(
        "--create", "--max-life-time-period", "600000", "--renewer-principal", "User:bob"
    )
    found = TOKEN.search(created)
    assert status == 0, created
    assert found is not None, created
    assert found["rest"].startswith("User:alice")
    assert "[User:bob]" in found["rest"]

    for user in USERS:
        status, described = setup.tool("--describe", "--owner-principal", "User:alice", user=user)
        assert (status, found["hmac"] in described) == (0, True), "the owner, and a renewer"
        status, renewed = setup.tool(
            "--renew", "--renew-time-period", "-1", "--hmac", found["hmac"], user=user
        )
        assert (status, "Completed renew operation" in renewed) == (0, True), renewed
    for nothing in (["--describe"], ["--describe", "--owner-principal", "User:eve"]):  # as with Kafka 4.3.1
        status, none = setup.tool(*nothing)
        assert (status, "Total number of tokens : 0" in none) == (0, True), none

    status, expired = setup.tool("--expire", "--expiry-time-period", "-1", "--hmac", found["hmac"])
    assert (status, "Completed expire operation" in expired) == (0, True), expired
    status, missing = setup.tool("--expire", "--expiry-time-period", "-1", "--hmac", found["hmac"])
    assert (status, "DelegationTokenNotFoundException" in missing) == (1, True), missing
    status, denied = setup.tool(
        "--create", "--max-life-time-period", "-1", "--owner-principal", "User:alice", user="bob"
    )
    assert (status, "DelegationTokenAuthorizationException" in denied) == (1, True), denied


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_java_client_logs_in_by_a_token(setup: Setup, mechanism: str) -> None:
    _, created = setup.tool("--create", "--max-life-time-period", "-1")
    found = TOKEN.search(created)
    assert found is not None, created
    token_id, hmac = found["id"], found["hmac"]
    config = setup.by_token(token_id, hmac, mechanism)
    topic = f"by-{mechanism.lower()}"
    setup.java.run("create_topics", config=config, topics=[{"name": topic}])
    assert topic in setup.java.run("list_topics", config=config)
    with pytest.raises(JavaError, match=r"SaslAuthenticationException|SASL_AUTHENTICATION_FAILED"):
        setup.java.run("list_topics", config=setup.by_token(token_id, "x" + hmac[1:], mechanism))
    with WirePeer(setup.bootstrap) as alice:
        log_in(alice, "alice", USERS["alice"])
        [token] = [each.hmac for each in describe(alice).tokens if each.token_id == token_id]
        assert expire(alice, token).error_code == ErrorCode.none
    with pytest.raises(JavaError, match=r"SaslAuthenticationException|SASL_AUTHENTICATION_FAILED"):
        setup.java.run("list_topics", config=config)


def test_a_token_that_expires_is_no_login_any_more(setup: Setup) -> None:
    _, created = setup.tool("--create", "--max-life-time-period", str(LIFETIME_MS))
    found = TOKEN.search(created)
    assert found is not None, created
    config = setup.by_token(found["id"], found["hmac"])

    def is_refused() -> bool:
        try:
            setup.java.run("list_topics", config=config)
        except JavaError:
            return True
        return False

    eventually(is_refused, "the token has expired")
    described = ("--describe", "--owner-principal", "User:alice")
    eventually(lambda: found["id"] not in setup.tool(*described)[1], "the token is removed")
