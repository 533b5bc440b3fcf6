"""SCRAM (RFC 5802, RFC 7677): a user proves a password without sending it, and the server proves that it
knows the user.

```
client ── n,,n=user,r=nonce ──────────────────────────────────▶ server
client ◀── r=nonce + server's nonce, s=salt, i=iterations ───── server
client ── c=biws, r=both nonces, p=proof ─────────────────────▶ server
client ◀── v=signature ──────────────────────────────────────── server
```

The server keeps no password, but a :class:`ScramCredential`. As in Kafka, channel binding is refused and
user names and passwords are taken as UTF-8 without SASLprep. The parts here are the keys and the messages;
:mod:`nilometer.security.scram_exchange` has both sides of the exchange.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from dataclasses import dataclass, field

import msgspec

from nilometer.security.sasl import SaslRejected

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
SALT_BITS = 130
"""Salts have the form of those that Kafka's tools make: a number of this many bits, in base 36."""
SALT_BYTES = -(-SALT_BITS // 8)
TOKEN_EXTENSION = "tokenauth"
"""The extension by which the first message says that its user is the id of a delegation token: ``true``."""
_BASE_36 = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(enum.Enum):
    """The value is the mechanism's name; ``number`` is the one that Kafka's requests use."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> int:
        return 1 if self is ScramMechanism.SHA_256 else 2

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @classmethod
    def numbered(cls, number: int) -> ScramMechanism | None:
        return next((mechanism for mechanism in cls if mechanism.number == number), None)


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps for a user: enough to check a proof, not enough to make one without guessing."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Return PBKDF2 of the password. Takes milliseconds: call it off the event loop."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a user with the :func:`salted_password` ``salted``."""
    return ScramCredential(
        salt,
        stored_key_of(mechanism, client_key_of(mechanism, salted)),
        server_key_of(mechanism, salted),
        iterations,
    )


def client_key_of(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return sign(mechanism, salted, b"Client Key")


def server_key_of(mechanism: ScramMechanism, salted: bytes) -> bytes:
    return sign(mechanism, salted, b"Server Key")


def stored_key_of(mechanism: ScramMechanism, client_key: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, client_key).digest()


def sign(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, mechanism.hash_name).digest()


def xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def salt_of(random: bytes) -> bytes:
    """Return a salt made of ``SALT_BYTES`` random bytes."""
    number = int.from_bytes(random[:SALT_BYTES], "big") >> (8 * SALT_BYTES - SALT_BITS)
    digits: list[str] = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_BASE_36[digit])
    return "".join(reversed(digits)).encode() or b"0"


def placeholder_credential(mechanism: ScramMechanism, user: str, key: bytes) -> ScramCredential:
    """Return the credential that stands for an unknown user; no proof fits it.

    Its salt depends on the user and on the secret ``key`` only, so that repeated attempts do not tell whether
    the user exists.
    """
    salt = salt_of(sign(mechanism, key, f"salt of an unknown user:{mechanism.value}:{user}".encode()))
    size = hashlib.new(mechanism.hash_name).digest_size
    return ScramCredential(salt, bytes(size), bytes(size), ITERATIONS_MIN)


# ── messages

_SASL_NAME = r"(?:[^=,\x00]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2B\x2D-\x7E]+"
_BASE_64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\x00]+)*"

_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_SASL_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_SASL_NAME}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_SERVER_FIRST = re.compile(
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>{_BASE_64}),i=(?P<iterations>[0-9]{{1,9}}){_EXTENSIONS}"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<binding>{_BASE_64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE_64})"
)
_SERVER_FINAL = re.compile(rf"(?:v=(?P<signature>{_BASE_64})|e=(?P<error>[^,\x00]+)){_EXTENSIONS}")


class ClientFirst(msgspec.Struct, frozen=True):
    header: str
    """The GS2 header, which the last message repeats."""
    bare: str
    """The message without that header."""
    user: str
    nonce: str
    authorization_id: str
    has_token: bool
    """Whether the user is the id of a delegation token."""


class ServerFirst(msgspec.Struct, frozen=True):
    text: str
    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(msgspec.Struct, frozen=True):
    without_proof: str
    binding: bytes
    nonce: str
    proof: bytes


def parse_client_first(message: bytes) -> ClientFirst:
    found = _match(_CLIENT_FIRST, message, "first message of the client")
    return ClientFirst(
        found["header"],
        found["bare"],
        _unescape(found["user"]),
        found["nonce"],
        _unescape(found["authorization"] or ""),
        _has_token(found["extensions"]),
    )


def _has_token(extensions: str) -> bool:
    named = (each.partition("=") for each in extensions.split(","))
    return any(name == TOKEN_EXTENSION and value.lower() == "true" for name, _, value in named)


def parse_server_first(message: bytes) -> ServerFirst:
    found = _match(_SERVER_FIRST, message, "first message of the server")
    return ServerFirst(
        message.decode(), found["nonce"], decode_base64(found["salt"]), int(found["iterations"])
    )


def parse_client_final(message: bytes) -> ClientFinal:
    found = _match(_CLIENT_FINAL, message, "last message of the client")
    return ClientFinal(
        found["without_proof"],
        decode_base64(found["binding"]),
        found["nonce"],
        decode_base64(found["proof"]),
    )


def parse_server_final(message: bytes) -> bytes:
    """Return the server's signature. Raises SaslRejected, also if the message is an error."""
    found = _match(_SERVER_FINAL, message, "last message of the server")
    if found["error"] is not None:
        raise SaslRejected(f"the broker rejected the login: {found['error']}")
    return decode_base64(found["signature"])


def _match(pattern: re.Pattern[str], message: bytes, what: str) -> re.Match[str]:
    try:
        found = pattern.fullmatch(message.decode("utf-8"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise SaslRejected(f"the {what} is not valid in SCRAM")
    return found


def escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslRejected("a part of the message is not valid base 64") from None
