"""SASL exchanges as state machines: bytes in, bytes out. One value is one exchange, of one side."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class SaslRejected(Exception):
    """The exchange failed; the message says why, and never contains a secret.

    ``shown``: the text for the other side, which does not say whether the user or the password is wrong.
    None: a general text.
    """

    def __init__(self, message: str, shown: str | None = None) -> None:
        super().__init__(message)
        self.shown = shown


Outcome = list[Any]
"""What became of a message: the answer, why it was rejected, and the text for the other side."""


def outcome_of(respond: Callable[[], bytes | None]) -> Outcome:
    """Return the outcome of a message as a value, which the flight recorder can write."""
    try:
        return [respond(), None, None]
    except SaslRejected as error:
        return [None, str(error), error.shown]


def answer_of(outcome: Outcome) -> bytes | None:
    """Return the answer. Raises SaslRejected."""
    answer, rejection, shown = outcome
    if rejection is not None:
        raise SaslRejected(rejection, shown)
    return answer


class SaslServer(Protocol):
    """The accepting side of an exchange, which the client begins.

    Mechanisms inherit the properties that not all of them have.
    """

    def respond(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises SaslRejected; then the exchange is over."""
        ...

    def work_before(self, message: bytes) -> Callable[[], None] | None:
        """Return what to do off the event loop before ``respond``, which takes milliseconds; None: nothing.

        What is not done before, ``respond`` does.
        """
        return None

    @property
    def user(self) -> str | None:
        """The authenticated user; None before the exchange is complete."""
        ...

    @property
    def expires_ms(self) -> int | None:
        """When the user's credential expires, in milliseconds since the Unix epoch; None: never."""
        return None

    @property
    def token_id(self) -> str | None:
        """The id of the delegation token by which the user has authenticated (KIP-48); None: not by one."""
        return None

    @property
    def failure(self) -> str | None:
        """Why the exchange fails as soon as the client has acknowledged it; None: it has not failed."""
        return None


class SaslClient(Protocol):
    """The connecting side of an exchange."""

    def begin(self) -> bytes:
        """Return the first message."""
        ...

    def respond(self, message: bytes) -> bytes | None:
        """Return the answer to the server's next message; None if there is none because the exchange is
        complete. Raises SaslRejected if the server is not who it claims to be, or sent something invalid.

        May compute for some milliseconds: call it off the event loop.
        """
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the exchange is complete, with the server authenticated where the mechanism does that."""
        ...


def session_lifetime_ms(expires_ms: int | None, now_ms: int, max_reauth_ms: int) -> int | None:
    """Return how long a connection may be used before its client must authenticate again (KIP-368).

    ``expires_ms``: of the credential; ``max_reauth_ms``: ``connections.max.reauth.ms``, 0 for no limit.
    None: for as long as it is open.
    """
    limits = [] if expires_ms is None else [max(0, expires_ms - now_ms)]
    if max_reauth_ms > 0:
        limits.append(max_reauth_ms)
    return min(limits, default=None)


# SASL/PLAIN (RFC 4616): the user's name and password in one message, in clear text.

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


# ``sasl.jaas.config``: one login module and its options, as Java writes it.
#
# ``org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="…";``

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<mark>[=;])|(?P<word>[^\s=;"']+))""",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
CONTROLS = ("required", "requisite", "sufficient", "optional")

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class InvalidJaas(ValueError):
    """The text is not a login module; the message says what is wrong, without any of the values."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    name: str
    """The Java class."""
    options: Mapping[str, str] = field(repr=False)

    def users(self) -> dict[str, str]:
        """Return the passwords that a PlainLoginModule of a broker accepts: its options ``user_NAME``."""
        return {
            name.removeprefix("user_"): text
            for name, text in self.options.items()
            if name.startswith("user_")
        }


def client_jaas(module: str, user: str, password: str) -> str:
    """Return the login module of a client as text, which :func:`parse_jaas` reads."""
    return f"{module} required username={quoted(user)} password={quoted(password)};"


def quoted(text: str) -> str:
    """Return the value of an option, as :func:`parse_jaas` reads it."""
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def parse_jaas(text: str) -> LoginModule:
    """Parse one login module. Raises InvalidJaas."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise InvalidJaas('use MODULE required option="value" …; with a semicolon at the end')
    if ("mark", ";") in tokens[:-1]:
        raise InvalidJaas("there is more than one login module")
    (_, name), (_, control), *rest = tokens[:-1]
    if control.lower() not in CONTROLS:
        raise InvalidJaas(f"after the module's name one of {', '.join(CONTROLS)} is expected")
    options: dict[str, str] = {}
    for position in range(0, len(rest), 3):
        match rest[position : position + 3]:
            case [("word" | "quoted", key), ("mark", "="), ("word" | "quoted", value)]:
                options[key] = value
            case _:
                raise InvalidJaas(f'option {position // 3 + 1} is not of the form name="value"')
    return LoginModule(name, options)


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position, text = 0, text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise InvalidJaas("a quotation mark has no counterpart")
        kind, token = match.lastgroup or "", match[match.lastgroup or 0]
        if kind == "quoted":
            token = re.sub(
                r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), token[1:-1], flags=re.DOTALL
            )
        tokens.append((kind, token))
        position = match.end()
    return tokens
