"""SASL/OAUTHBEARER (RFC 7628, KIP-255): the client sends a bearer token in its first message.

```
client ── n,,^Aauth=Bearer TOKEN^A^A ──▶ server
client ◀── an empty message ──────────── server      the token is accepted
client ◀── {"status":"invalid_token"} ── server      or it is not: then
client ── ^A ──────────────────────────▶ server      the client acknowledges, and the exchange fails
```

``^A`` is the byte 1. As in Kafka, the user is the token's subject, and extensions (``^AKEY=VALUE``) are
accepted and not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nilometer.security.bearer_token import BearerToken, InvalidToken
from nilometer.security.sasl import SaslRejected, SaslServer

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
