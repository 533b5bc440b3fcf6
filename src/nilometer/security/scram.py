"""SCRAM (RFC 5802, RFC 7677): a user proves a password without sending it, and the server proves that it
knows the user.

```
client ── n,,n=user,r=nonce ──────────────────────────────────▶ server
client ◀── r=nonce + server's nonce, s=salt, i=iterations ───── server
client ── c=biws, r=both nonces, p=proof ─────────────────────▶ server
client ◀── v=signature ──────────────────────────────────────── server
```

The server keeps no password, but a :class:`ScramCredential`. As in Kafka, channel binding is refused and
user names and passwords are taken as UTF-8 without SASLprep. The keys and the messages come first, then
both sides of the exchange.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from nilometer.security.sasl import SaslRejected, SaslServer

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
SALT_BITS = 130
"""Salts have the form of those that Kafka's tools make: a number of this many bits, in base 36."""
SALT_BYTES = -(-SALT_BITS // 8)
MESSAGE_BYTES_MAX = 16 * 1024
"""To read a name of half a megabyte takes 70 ms, and needs no login."""
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
    if len(message) > MESSAGE_BYTES_MAX:
        raise SaslRejected(f"the {what} has more than {MESSAGE_BYTES_MAX} bytes")
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


# Both sides of a SCRAM exchange. The order of the messages is at the top of this module.

ITERATIONS_ACCEPTED_MAX = 1_000_000
"""A client refuses more: a process in a broker's place could keep it busy for hours."""


class TokenLogin(NamedTuple):
    """A login by a delegation token."""

    owner: str
    """The name of the user that it is a login of."""
    expires_ms: int
    credential: ScramCredential


class ScramServer(SaslServer):
    """Invariants: an unknown user or token fails at the last message, as one with a wrong password does; the
    two cases take the same steps. A token's id is no user's name, and a user's name no token's id."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        nonce: str,
        placeholder_key: bytes,
        find_token: Callable[[str], TokenLogin | None] = lambda _: None,
        work_for_token: Callable[[str], Callable[[], None] | None] = lambda _: None,
    ) -> None:
        """``find`` returns a user's credential, ``find_token`` the login by the token with this id, and
        ``work_for_token`` what that has to compute first, for milliseconds; ``nonce``: a random text for this
        exchange alone; ``placeholder_key``: of :func:`placeholder_credential`."""
        self._mechanism = mechanism
        self._find = find
        self._find_token = find_token
        self._work_for_token = work_for_token
        self._token: TokenLogin | None = None
        self._own_nonce = nonce
        self._placeholder_key = placeholder_key
        self._first: ClientFirst | None = None
        self._server_first = ""
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._user: str | None = None

    @property
    def user(self) -> str | None:
        return self._user

    @property
    def expires_ms(self) -> int | None:
        return None if self._token is None else self._token.expires_ms

    @property
    def token_id(self) -> str | None:
        return None if self._token is None or self._first is None else self._first.user

    def work_before(self, message: bytes) -> Callable[[], None] | None:
        if self._first is not None or TOKEN_EXTENSION.encode() not in message:
            return None
        try:
            first = parse_client_first(message)
        except SaslRejected:
            return None  # as ``respond`` tells the client
        return self._work_for_token(first.user) if first.has_token else None

    def respond(self, message: bytes) -> bytes:
        if self._user is not None:
            raise SaslRejected("the exchange is complete")
        if self._first is None:
            return self._on_first(parse_client_first(message))
        return self._on_final(self._first, message)

    def _on_first(self, first: ClientFirst) -> bytes:
        if first.authorization_id not in ("", first.user):
            why = "Client requested an authorization id that is different from username"
            raise SaslRejected(why, f"Authentication failed: {why}")
        if first.has_token:
            self._token = self._find_token(first.user)
            known = None if self._token is None else self._token.credential
        else:
            known = self._find(first.user)
        credential = known or placeholder_credential(self._mechanism, first.user, self._placeholder_key)
        self._first, self._credential, self._is_known = first, credential, known is not None
        salt = encode_base64(credential.salt)
        self._server_first = f"r={first.nonce}{self._own_nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def _on_final(self, first: ClientFirst, message: bytes) -> bytes:
        final, credential, mechanism = parse_client_final(message), self._credential, self._mechanism
        assert credential is not None
        if final.nonce != first.nonce + self._own_nonce:
            raise SaslRejected("the last message has another nonce")
        if final.binding != first.header.encode():
            raise SaslRejected("the last message has another channel binding")
        signed = f"{first.bare},{self._server_first},{final.without_proof}".encode()
        signature = sign(mechanism, credential.stored_key, signed)
        has_size = len(final.proof) == len(signature)
        client_key = xor(final.proof, signature) if has_size else signature
        matches = hmac.compare_digest(stored_key_of(mechanism, client_key), credential.stored_key)
        if not (matches and has_size and self._is_known):
            raise SaslRejected("unknown user or wrong password")
        self._user = first.user if self._token is None else self._token.owner
        return f"v={encode_base64(sign(mechanism, credential.server_key, signed))}".encode()


class ScramClient:
    """Invariant: the exchange is complete only if the server has proved that it knows the user's keys."""

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: str, nonce: str, *, by_token: bool = False
    ) -> None:
        """``nonce``: a random text for this exchange alone. ``by_token``: the user is the id of a delegation
        token, and the password its HMAC in base 64."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escape(user)},r={nonce}" + (f",{TOKEN_EXTENSION}=true" if by_token else "")
        self._expected: bytes | None = None
        self._complete = False

    @property
    def is_complete(self) -> bool:
        return self._complete

    def begin(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def respond(self, message: bytes) -> bytes | None:
        if self._expected is None:
            return self._on_first(message)
        if not hmac.compare_digest(parse_server_final(message), self._expected):
            raise SaslRejected(
                "the broker does not know the user's password: it is not the one it claims to be"
            )
        self._complete = True
        return None

    def _on_first(self, message: bytes) -> bytes:
        first, mechanism = parse_server_first(message), self._mechanism
        if not first.nonce.startswith(self._nonce) or first.nonce == self._nonce:
            raise SaslRejected("the broker answered with another nonce")
        if not ITERATIONS_MIN <= first.iterations <= ITERATIONS_ACCEPTED_MAX:
            raise SaslRejected(
                f"the broker asks for {first.iterations} iterations; "
                f"{ITERATIONS_MIN} to {ITERATIONS_ACCEPTED_MAX} are accepted"
            )
        salted = salted_password(mechanism, self._password, first.salt, first.iterations)
        without_proof = f"c={encode_base64(b'n,,')},r={first.nonce}"
        signed = f"{self._bare},{first.text},{without_proof}".encode()
        key = client_key_of(mechanism, salted)
        proof = xor(key, sign(mechanism, stored_key_of(mechanism, key), signed))
        self._expected = sign(mechanism, server_key_of(mechanism, salted), signed)
        return f"{without_proof},p={encode_base64(proof)}".encode()
