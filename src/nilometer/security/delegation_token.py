"""Delegation tokens (KIP-48): a user's right to log in, for a limited time, without the user's password.

A token is an id, and an HMAC of it under a secret key that all brokers have: only they can make the HMAC, so
the metadata has no secret of a token. A client logs in by SCRAM with the id as its user, the HMAC in base 64
as its password, and the extension ``tokenauth=true``; it is then the token's owner.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

from nilometer.security.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_of,
    salted_password,
    sign,
)

TOKEN_BYTES = 512
"""What a token takes beside its principals."""
PRINCIPAL_BYTES = 64


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    """What all brokers know of a token; times are in milliseconds since the Unix epoch."""

    owner: str
    """The principal that a login by the token has, as ``User:name``; so are the other principals."""
    requester: str
    """The principal that requested the token: the owner, or one that may create tokens for it (KIP-373)."""
    renewers: tuple[str, ...] = ()
    issued_ms: int
    max_ms: int
    """The token cannot be renewed beyond this time."""
    expires_ms: int

    def is_expired(self, now_ms: int) -> bool:
        return now_ms > min(self.expires_ms, self.max_ms)

    def is_renewed_by(self, principal: str) -> bool:
        """Return whether ``principal`` may renew and expire the token."""
        return principal == self.owner or principal in self.renewers

    @property
    def principals(self) -> tuple[str, ...]:
        """Those that may always describe the token."""
        return (self.owner, self.requester, *self.renewers)

    @property
    def size(self) -> int:
        """About how many bytes of memory the token takes."""
        return TOKEN_BYTES + sum(len(each) + PRINCIPAL_BYTES for each in self.principals)


@dataclass(frozen=True, slots=True)
class TokenKey:
    """``delegation.token.secret.key``: who knows it can make the HMAC of every token."""

    secret: str = field(repr=False)

    def hmac_of(self, token_id: str) -> bytes:
        return hmac.new(self.secret.encode(), token_id.encode(), hashlib.sha512).digest()


def password_of(token_hmac: bytes) -> str:
    """Return the password of a token's login."""
    return base64.b64encode(token_hmac).decode()


def login_credential(mechanism: ScramMechanism, token_hmac: bytes) -> ScramCredential:
    """Return the credential of a token's login, the same on every broker. Computes for milliseconds."""
    salt = salt_of(sign(mechanism, token_hmac, b"salt of a delegation token"))
    salted = salted_password(mechanism, password_of(token_hmac), salt, ITERATIONS_MIN)
    return credential_of(mechanism, salted, salt, ITERATIONS_MIN)
