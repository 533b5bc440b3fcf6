"""Bearer tokens: by which claims a broker accepts one (RFC 7519), and SASL/OAUTHBEARER (RFC 7628, KIP-255),
by which a client sends it in its first message.

```
client ── n,,^Aauth=Bearer TOKEN^A^A ──▶ server
client ◀── an empty message ──────────── server      the token is accepted
client ◀── {"status":"invalid_token"} ── server      or it is not: then
client ── ^A ──────────────────────────▶ server      the client acknowledges, and the exchange fails
```

``^A`` is the byte 1. As in Kafka, the user is the token's subject, and extensions (``^AKEY=VALUE``) are
accepted and not used. The signature is verified elsewhere (:mod:`nilometer.security.signing_keys`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import msgspec

from nilometer.security.sasl import SaslRejected, SaslServer

# The claims of a bearer token (RFC 7519) and the rules by which a broker accepts them, as Kafka 4.4.0's.
#
# The signature is verified before, by :mod:`nilometer.security.signing_keys`. Times of claims are seconds
# since the Unix epoch, with or without fractions.

TRIMMED = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` removes, and no other space: a user who may choose a name must not become another."""
CLAIM_MS_MAX = 1 << 53
"""Later times are taken as an error in the token: about 287,000 years."""


class InvalidToken(Exception):
    """The token is not accepted; the message says why, without the token. ``status``: as in RFC 6750."""

    status = "invalid_token"


class UnknownKey(InvalidToken):
    """The token is signed by a key that is not known, or not yet."""


class BearerToken(msgspec.Struct, frozen=True):
    subject: str
    expires_ms: int
    """Milliseconds since the Unix epoch."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
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


OAUTHBEARER = "OAUTHBEARER"
SEPARATOR = "\x01"
ACKNOWLEDGEMENT = SEPARATOR.encode()
"""The client's answer to the description of an error."""

_SASL_NAME = r"(?:[\x01-\x2B\x2D-\x3C\x3E-\x7F]|=2C|=3D)+"
_CLIENT_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization>{_SASL_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7E \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)", re.ASCII)
_TOKEN = re.compile(r"[-_.a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True)
class ClientFirst:
    token: str = field(repr=False)
    authorization_id: str
    """The user that the client wants to be; empty: the token's."""


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises SaslRejected."""
    try:
        found = _CLIENT_FIRST.fullmatch(message.decode("utf-8"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslRejected("the first message is not valid in OAUTHBEARER")
    pairs = [pair.partition("=") for pair in found["pairs"].split(SEPARATOR) if pair]
    keys = [key for key, _, _ in pairs]
    if keys.count("auth") != 1:
        raise SaslRejected("the first message has no token, or several")
    auth = _AUTH.fullmatch(next(value for key, _, value in pairs if key == "auth"))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise SaslRejected("the first message has no token of the scheme Bearer")
    authorization = (found["authorization"] or "").replace("=2C", ",").replace("=3D", "=")
    return ClientFirst(auth["token"], authorization)


class OAuthBearerServer(SaslServer):
    """Invariant: a token that is not accepted ends the exchange; the client cannot try another one."""

    def __init__(self, validate: Callable[[str], BearerToken]) -> None:
        """``validate`` raises InvalidToken."""
        self._validate = validate
        self._token: BearerToken | None = None
        self._failure: str | None = None
        self._shown = ""

    @property
    def user(self) -> str | None:
        return None if self._token is None else self._token.subject

    @property
    def expires_ms(self) -> int | None:
        return None if self._token is None else self._token.expires_ms

    @property
    def failure(self) -> str | None:
        return self._failure

    def respond(self, message: bytes) -> bytes:
        if self._token is not None:
            raise SaslRejected("the exchange is complete")
        if self._failure is not None:
            raise SaslRejected(self._failure, self._shown)
        first = parse_client_first(message)
        try:
            token = self._validate(first.token)
        except InvalidToken as error:
            self._failure, self._shown = (
                str(error),
                json.dumps({"status": error.status}, separators=(",", ":")),
            )
            return self._shown.encode()
        if first.authorization_id not in ("", token.subject):
            raise SaslRejected(
                "the client requested an authorization id that is different from the token's subject",
                f"Authentication failed: Client requested an authorization id ({first.authorization_id}) "
                f"that is different from the token's principal name ({token.subject})",
            )
        self._token = token
        return b""


class OAuthBearerClient:
    def __init__(self, token: str) -> None:
        """Raises SaslRejected if ``token`` has characters that no token has."""
        if _TOKEN.fullmatch(token) is None:
            raise SaslRejected("the token has characters that a bearer token cannot have")
        self._token = token
        self._complete = False
        self._description: bytes | None = None

    @property
    def is_complete(self) -> bool:
        return self._complete

    def begin(self) -> bytes:
        return f"n,,{SEPARATOR}auth=Bearer {self._token}{SEPARATOR}{SEPARATOR}".encode()

    def respond(self, message: bytes) -> bytes | None:
        """Acknowledge the description of an error; the broker then says which error it is."""
        if not message and self._description is None:
            self._complete = True
            return None
        if self._description is not None:
            raise SaslRejected("the broker did not end an exchange that failed")
        self._description = message
        return ACKNOWLEDGEMENT
