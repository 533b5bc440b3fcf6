"""The claims of a bearer token (RFC 7519) and the rules by which a broker accepts them, as Kafka 4.4.0's.

The signature is verified before, by :mod:`nilometer.security.signing_keys`. Times of claims are seconds
since the Unix epoch, with or without fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

TRIMMED = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` removes, and no other space: a user who may choose a name must not become another."""
CLAIM_MS_MAX = 1 << 53
"""Later times are taken as an error in the token: about 287,000 years."""


class InvalidToken(Exception):
    """The token is not accepted; the message says why, without the token. ``status``: as in RFC 6750."""

    status = "invalid_token"


class UnknownKey(InvalidToken):
    """The token is signed by a key that is not known, or not yet."""


@dataclass(frozen=True, slots=True)
class BearerToken:
    subject: str
    expires_ms: int
    """Milliseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    issuer: str | None = None
    """The only issuer whose tokens are accepted; None: each that the keys belong to."""
    audiences: tuple[str, ...] = ()
    """A token must be for one of them. Without any, a token that names an audience is not accepted."""
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30


def check_claims(claims: Mapping[str, object], rules: TokenRules, now_ms: int) -> BearerToken:
    """Return the token with these claims. Raises InvalidToken."""
    expires_ms = _check_times(claims, rules.clock_skew_s * 1000, now_ms)
    _check_issuer(claims, rules.issuer)
    _check_audience(claims, rules.audiences)
    _check_scopes(claims.get(rules.scope_claim), rules.scope_claim)
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip(TRIMMED):
        raise InvalidToken(f"the claim {rules.subject_claim}, which names the user, is missing or no text")
    return BearerToken(subject.strip(TRIMMED), expires_ms)


def _check_times(claims: Mapping[str, object], skew_ms: int, now_ms: int) -> int:
    """Return when the token expires."""
    expires_ms, issued_ms, not_before_ms = (_time_ms(claims, name) for name in ("exp", "iat", "nbf"))
    if expires_ms is None:
        raise InvalidToken("the claim exp is missing: the token never expires")
    if issued_ms is None:
        raise InvalidToken("the claim iat is missing")
    if expires_ms + skew_ms <= now_ms:
        raise InvalidToken("the token has expired")
    if expires_ms < issued_ms or (not_before_ms is not None and expires_ms < not_before_ms):
        raise InvalidToken("the token expires before it is valid")
    if not_before_ms is not None and not_before_ms - skew_ms > now_ms:
        raise InvalidToken("the token is not valid yet (nbf)")
    return expires_ms


def _time_ms(claims: Mapping[str, object], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidToken(f"the claim {name} is not a number")
    if not 0 <= value <= CLAIM_MS_MAX // 1000:  # false for NaN
        raise InvalidToken(f"the claim {name} is not a time")
    return int(value) * 1000


def _check_issuer(claims: Mapping[str, object], expected: str | None) -> None:
    if expected is not None and claims.get("iss") != expected:
        raise InvalidToken("the claim iss is not the expected issuer")


def _check_audience(claims: Mapping[str, object], expected: tuple[str, ...]) -> None:
    value = claims.get("aud")
    if value is None and not expected:
        return
    named = cast("list[object]", value) if isinstance(value, list) else [value]
    if not any(isinstance(name, str) and name in expected for name in named):
        raise InvalidToken(
            "the claim aud has none of the expected audiences"
            if expected
            else "the token is for an audience (aud), and sasl.oauthbearer.expected.audience names none"
        )


def _check_scopes(value: object, name: str) -> None:
    scopes = cast("list[object]", value) if isinstance(value, list) else [value] if value is not None else []
    texts = [scope.strip() for scope in scopes if isinstance(scope, str)]
    if len(texts) != len(scopes) or not all(texts) or len(set(texts)) != len(texts):
        raise InvalidToken(f"the claim {name} is not a text, nor a list of different texts")
