"""Requests for delegation tokens, logins by them, and the settings of a broker that has some."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from nilometer.security.sasl import PLAIN_MODULE, SCRAM_MODULE, PlainClient
from nilometer.security.scram import ScramClient, ScramMechanism
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

from ..wire.wire_peer import WirePeer, make

CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
SECRET_KEY = "the-secret-key-of-all-tokens"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def token_settings(users: Mapping[str, str], listener: str = "sasl_plaintext") -> dict[str, str]:
    """Return what a broker needs besides its listeners, for users of PLAIN and logins by token."""
    accepted = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    prefix = f"listener.name.{listener}"
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{prefix}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {accepted};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
        "delegation.token.secret.key": SECRET_KEY,
    }


def log_in(peer: WirePeer, user: str, password: str) -> WirePeer:
    assert peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code == ErrorCode.none
    answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=PlainClient(user, password).begin())
    assert answer.error_code == ErrorCode.none, answer
    return peer


def log_in_by_token(
    peer: WirePeer,
    token_id: str,
    token_hmac: bytes,
    mechanism: str = "SCRAM-SHA-256",
    user: str | None = None,
) -> Any:
    """Go through the exchange; return its last answer. ``user``: in place of the token's id."""
    password = base64.b64encode(token_hmac).decode()
    client = ScramClient(ScramMechanism(mechanism), user or token_id, password, "nonce", by_token=True)
    assert peer.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == ErrorCode.none
    message: bytes | None = client.begin()
    answer = None
    while message is not None:
        answer = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=message)
        if answer.error_code != ErrorCode.none:
            return answer
        message = client.respond(answer.auth_bytes)
    assert client.is_complete
    return answer


def hmac_of(token_id: str) -> bytes:
    return hmac.new(SECRET_KEY.encode(), token_id.encode(), hashlib.sha512).digest()


def create(
    peer: WirePeer,
    *,
    owner: str | None = None,
    renewers: tuple[str, ...] = (),
    max_lifetime_ms: int = -1,
    version: int = 3,
) -> Any:
    """Ask for a token. Principals are given as type:name."""
    kind, _, name = (owner or ":").partition(":")
    fields = {"owner_principal_type": kind or None, "owner_principal_name": name or None} if owner else {}
    listed = tuple(
        make(CREATE, version, "CreatableRenewers", principal_type=kind, principal_name=name)
        for kind, _, name in (each.partition(":") for each in renewers)
    )
    return peer.ask(CREATE, version, renewers=listed, max_lifetime_ms=max_lifetime_ms, **fields)


def renew(peer: WirePeer, token_hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    return peer.ask(RENEW, version, hmac=token_hmac, renew_period_ms=period_ms)


def expire(peer: WirePeer, token_hmac: bytes, period_ms: int = -1, version: int = 2) -> Any:
    return peer.ask(EXPIRE, version, hmac=token_hmac, expiry_time_period_ms=period_ms)


def describe(peer: WirePeer, owners: tuple[str, ...] | None = None, version: int = 3) -> Any:
    listed = None
    if owners is not None:
        listed = tuple(
            make(DESCRIBE, version, "DescribeDelegationTokenOwner", principal_type=kind, principal_name=name)
            for kind, _, name in (each.partition(":") for each in owners)
        )
    return peer.ask(DESCRIBE, version, owners=listed)
