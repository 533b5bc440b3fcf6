"""Nilometer's own client and commands with tokens of a file and of a token endpoint, and with wrong ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

import nilometer
from nilometer.wire.errors import ErrorCode, KafkaError
from support.brokers.oauth_broker import oauth_settings
from support.brokers.sasl_broker import SaslBroker, sasl_broker
from support.issuer import claims, jwks, rsa_key, signed
from support.issuer_server import CLIENT_ID, CLIENT_SECRET, IssuerServer, basic

SESSION_MS = 2_000
CLIENTS = 2
"""Those that nilometer.connect makes here: for records, and for administration. Each has its token."""


@pytest.fixture(scope="module")
def issuer() -> Iterator[IssuerServer]:
    with IssuerServer(jwks(one=rsa_key()), issue=lambda: signed(rsa_key(), claims())) as server:
        yield server


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: IssuerServer) -> Iterator[SaslBroker]:
    more = {"connections.max.reauth.ms": str(SESSION_MS)}
    with sasl_broker(
        tmp_path_factory.mktemp("oauth") / "data", oauth_settings(issuer.keys_url, more)
    ) as broker:
        yield broker


def settings(url: str, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": url,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def by_endpoint(issuer: IssuerServer, secret: str = CLIENT_SECRET) -> dict[str, str]:
    return settings(issuer.token_url) | {
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": secret,
        "sasl.oauthbearer.scope": "write:topics",
    }


def send_for(bootstrap: str, given: dict[str, str], seconds: float) -> int:
    """Send records for that long; return how many were acknowledged."""

    async def run() -> int:
        async with nilometer.connect(bootstrap, settings=given) as kafka:
            sent, ends = 0, time.monotonic() + seconds
            while time.monotonic() < ends or not sent:
                await kafka.send("tokens", b"a record")
                sent += 1
                await asyncio.sleep(0.02)
            return sent

    return asyncio.run(run())


def test_a_client_authenticates_again_and_again_with_the_token_of_an_endpoint(
    broker: SaslBroker, issuer: IssuerServer
) -> None:
    def goes_on() -> bool:
        """Send for longer than two sessions; return whether none ended before the login was repeated."""
        issued, ended = issuer.tokens_issued, broker.broker.output.count("its session has expired")
        assert send_for(broker.bootstrap, by_endpoint(issuer), 2.2 * SESSION_MS / 1000) > 1
        assert issuer.tokens_issued - issued <= CLIENTS, "a token is used as long as it is valid"
        return broker.broker.output.count("its session has expired") == ended

    assert any(goes_on() for _ in range(5)), "a busy machine may be late for one session, but not each time"
    assert issuer.scopes[-1] == "write:topics"


def test_id_and_secret_are_encoded_on_request(broker: SaslBroker, issuer: IssuerServer) -> None:
    given = by_endpoint(issuer) | {"sasl.oauthbearer.header.urlencode": "true"}
    issuer.accepted = {basic(quote(CLIENT_SECRET, safe=""))}
    try:
        assert send_for(broker.bootstrap, given, 0) == 1
    finally:
        issuer.accepted = {basic(CLIENT_SECRET)}


def test_a_command_logs_in_by_the_token_in_a_file(broker: SaslBroker, tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "client.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings(f"file://{token}").items()))

    def run() -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "nilometer.cli", "topic", "list")
        options = ("--bootstrap-server", broker.bootstrap, "--command-config", str(config))
        return subprocess.run((*command, *options), check=False, capture_output=True, text=True, timeout=120)

    missing = run()
    assert missing.returncode == 1 and str(token) in missing.stderr, missing.stderr
    token.write_text(signed(rsa_key(), claims()) + "\n")
    assert run().returncode == 0
    wrong = signed(rsa_key(1), claims())
    token.write_text(wrong)
    refused = run()
    assert refused.returncode == 1 and "SASL_AUTHENTICATION_FAILED" in refused.stderr
    assert wrong not in refused.stderr


def test_wrong_credentials_at_the_token_endpoint_are_an_error_without_them(
    broker: SaslBroker, issuer: IssuerServer
) -> None:
    with pytest.raises(KafkaError) as refused:
        send_for(broker.bootstrap, by_endpoint(issuer, "wrong-secret"), 0)
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    assert "401" in str(refused.value) and "wrong-secret" not in str(refused.value)
