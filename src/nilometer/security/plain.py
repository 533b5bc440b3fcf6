"""SASL/PLAIN (RFC 4616): the user's name and password in one message, in clear text."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from nilometer.security.sasl import SaslRejected, SaslServer

PLAIN = "PLAIN"
_PARTS = 3


class PlainServer(SaslServer):
    """Checks the password against those in the broker's settings."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        """``passwords``: by user."""
        self._passwords = passwords
        self._user: str | None = None

    @property
    def user(self) -> str | None:
        return self._user

    def respond(self, message: bytes) -> bytes:
        user, password = _parse(message)
        expected = self._passwords.get(user)
        # An unknown user takes as long as a wrong password.
        matches = hmac.compare_digest(_digest(password), _digest("" if expected is None else expected))
        if expected is None or not matches:
            raise _rejected("Invalid username or password")
        self._user = user
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    try:
        parts = message.decode("utf-8").split("\0")
    except UnicodeDecodeError:
        raise _rejected("the message is not UTF-8") from None
    if len(parts) != _PARTS:
        raise _rejected(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
    authorization_id, user, password = parts
    if not user:
        raise _rejected("username not specified")
    if not password:
        raise _rejected("password not specified")
    if authorization_id not in ("", user):
        raise _rejected("Client requested an authorization id that is different from username")
    return user, password


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _rejected(why: str) -> SaslRejected:
    return SaslRejected(why, f"Authentication failed: {why}")


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password
        self._complete = False

    @property
    def is_complete(self) -> bool:
        return self._complete

    def begin(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()

    def respond(self, message: bytes) -> bytes | None:
        if message:
            raise SaslRejected("the broker answered SASL/PLAIN with a challenge")
        self._complete = True
        return None
