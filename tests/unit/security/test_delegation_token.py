"""Logins by delegation tokens: both sides of the exchange, and what is kept of a token."""

from __future__ import annotations

import pytest

from nilometer.cli.cluster_options import COMMON_CONFIG
from nilometer.client.settings import ClientSettings, client_security
from nilometer.security.delegation_token import DelegationToken, TokenKey, login_credential, password_of
from nilometer.security.sasl import SCRAM_MODULE, SaslRejected
from nilometer.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    TokenLogin,
    credential_of,
    salted_password,
)

KEY, TOKEN_ID, EXPIRY_MS = TokenKey("the key"), "AbCdEfGhIjKlMnOpQrStUv", 1_000
PASSWORD = password_of(KEY.hmac_of(TOKEN_ID))
USER_PASSWORD = "the user's own"


def of_user(mechanism: ScramMechanism, user: str) -> ScramCredential | None:
    salted = salted_password(mechanism, USER_PASSWORD, b"salt", 4096)
    return credential_of(mechanism, salted, b"salt", 4096) if user == "alice" else None


def of_token(mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
    if token_id != TOKEN_ID:
        return None
    return TokenLogin("alice", EXPIRY_MS, login_credential(mechanism, KEY.hmac_of(token_id)))


def log_in(mechanism: ScramMechanism, user: str, password: str, *, by_token: bool) -> ScramServer:
    """Go through the exchange; return the broker's side of it. Raises SaslRejected."""
    client = ScramClient(mechanism, user, password, "nonce", by_token=by_token)
    server = ScramServer(
        mechanism,
        lambda name: of_user(mechanism, name),
        "other nonce".replace(" ", ""),
        b"placeholder",
        lambda token_id: of_token(mechanism, token_id),
    )
    final = client.respond(server.respond(client.begin()))
    assert final is not None
    client.respond(server.respond(final))
    assert client.is_complete
    return server


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_login_by_token_is_one_of_the_owner_until_the_expiry(mechanism: ScramMechanism) -> None:
    server = log_in(mechanism, TOKEN_ID, PASSWORD, by_token=True)
    assert (server.user, server.token_id, server.expires_ms) == ("alice", TOKEN_ID, EXPIRY_MS)
    own = log_in(mechanism, "alice", USER_PASSWORD, by_token=False)
    assert (own.user, own.token_id, own.expires_ms) == ("alice", None, None)


@pytest.mark.parametrize(
    ("user", "password", "by_token"),
    [
        (TOKEN_ID, PASSWORD + "x", True),
        (TOKEN_ID, PASSWORD, False),  # a token is no user
        ("alice", USER_PASSWORD, True),  # and a user no token
        ("alice", PASSWORD, True),
        ("alice", PASSWORD, False),
        (TOKEN_ID, USER_PASSWORD, True),
    ],
)
def test_others_are_rejected_at_the_last_message(user: str, password: str, by_token: bool) -> None:
    with pytest.raises(SaslRejected, match="unknown user or wrong password"):
        log_in(ScramMechanism.SHA_256, user, password, by_token=by_token)


@pytest.mark.parametrize(
    ("extensions", "is_token"),
    [
        (",tokenauth=true", True),
        (",tokenauth=TRUE", True),
        (",other=x,tokenauth=true", True),
        (",tokenauth=truest", False),
        (",tokenauth=false", False),
        (",nottokenauth=true", False),
        (",other=tokenauth=true", False),
        ("", False),
    ],
)
def test_only_the_extension_with_the_value_true_makes_the_user_a_token(
    extensions: str, is_token: bool
) -> None:
    asked: list[str] = []

    def found(kind: str) -> None:
        asked.append(kind)

    server = ScramServer(
        ScramMechanism.SHA_256, lambda _: found("user"), "server", b"key", lambda _: found("token")
    )
    server.respond(f"n,,n={TOKEN_ID},r=nonce{extensions}".encode())
    assert asked == ["token" if is_token else "user"]


def test_the_hmac_is_that_of_kafka() -> None:
    """HMAC-SHA512 of the id under the key, as java.security computes it."""
    assert TokenKey("key").hmac_of("The quick brown fox jumps over the lazy dog").hex() == (
        "b42af09057bac1e2d41708e48a902e09b5ff7f12ab428a4fe86653c73dd248fb82f948a549f7b791a5b41915ee4d1ec3935357e4"
        "e2317250d0372afa2ebeeb3a"
    )
    assert "the key" not in repr(KEY)


def test_a_token_is_expired_after_its_expiry_and_after_its_maximum() -> None:
    token = DelegationToken(owner="User:a", requester="User:a", issued_ms=0, max_ms=5, expires_ms=3)
    assert [token.is_expired(now_ms) for now_ms in (3, 4)] == [False, True]
    beyond = DelegationToken(owner="User:a", requester="User:a", issued_ms=0, max_ms=5, expires_ms=9)
    assert [beyond.is_expired(now_ms) for now_ms in (5, 6)] == [False, True]


@pytest.mark.parametrize(
    ("option", "by_token"), [('tokenauth="true"', True), ("tokenauth=false", False), ("", False)]
)
def test_a_client_logs_in_by_token_if_its_login_module_says_so(option: str, by_token: bool) -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{SCRAM_MODULE} required username="id" password="hmac" {option};',
    }
    security = client_security(ClientSettings(COMMON_CONFIG, settings))
    assert (security.user, security.by_token) == ("id", by_token)
    assert "hmac" not in repr(security)
