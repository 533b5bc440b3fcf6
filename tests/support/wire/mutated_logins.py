"""Generates what a client may send instead of a login: broken TLS handshakes, requests and SASL messages.

Pure: ``mutated_login(seed, index, ...)`` always returns the same value for the same arguments, so two numbers
reproduce a failure. :mod:`support.wire.login_fuzz` plays it.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass

from nilometer.wire.api_keys import ApiKey

from .frame_fuzzer import EVERY_VERSION, Kind, MutatedFrame, mutated_frame

LOGIN_KEYS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS)
_OF_LOGINS = [number for number, (key, _) in enumerate(EVERY_VERSION) if key in LOGIN_KEYS]
_PARTS = (b"\0", b",", b"=", b"\1", b"n,,", b"a=", b"m=", b"r=", b"p=", b"\xff\xfe", b"a" * 9000)
"""What separates the parts of SASL messages, and what no message has."""


class Stage(enum.Enum):
    TLS = "instead of a TLS handshake"
    FIRST = "a request before SaslHandshake"
    SECOND = "a request after SaslHandshake"
    MESSAGE = "a SASL message"


class Exchange(enum.Enum):
    """Which message of which mechanism is mutated."""

    PLAIN = "PLAIN"
    FIRST_256 = "the first message of SCRAM-SHA-256"
    FINAL_256 = "the last message of SCRAM-SHA-256"
    FINAL_512 = "the last message of SCRAM-SHA-512"
    TOKEN = "the message of OAUTHBEARER"

    @property
    def mechanism(self) -> str:
        match self:
            case Exchange.PLAIN:
                return "PLAIN"
            case Exchange.TOKEN:
                return "OAUTHBEARER"
            case Exchange.FINAL_512:
                return "SCRAM-SHA-512"
            case _:
                return "SCRAM-SHA-256"

    @property
    def is_final(self) -> bool:
        return self in (Exchange.FINAL_256, Exchange.FINAL_512)


@dataclass(frozen=True, slots=True)
class MutatedLogin:
    seed: int
    index: int
    stage: Stage
    exchange: Exchange
    has_headers: bool
    """Whether messages come in SaslAuthenticate requests."""
    frame: MutatedFrame
    """Of the stages FIRST and SECOND."""
    hello: bytes
    """Of the stage TLS."""
    message_seed: str
    """Of the mutation of the message, which depends on the broker's nonce."""
    encrypted: bool
    """Whether it is played on the listener with TLS."""

    def describe(self) -> str:
        what = {
            Stage.FIRST: self.frame.describe(),
            Stage.SECOND: self.frame.describe(),
            Stage.MESSAGE: self.exchange.value,
            Stage.TLS: f"{len(self.hello)} bytes",
        }[self.stage]
        return f"mutated_login({self.seed}, {self.index}): {self.stage.value}: {what}"


def mutated_login(seed: int, index: int) -> MutatedLogin:
    chance = random.Random(f"{seed}.{index}.login")
    stage = chance.choice((Stage.TLS, Stage.FIRST, Stage.FIRST, Stage.SECOND, Stage.MESSAGE, Stage.MESSAGE))
    return MutatedLogin(
        seed,
        index,
        stage,
        chance.choice(tuple(Exchange)),
        chance.random() < 0.7,
        _frame(seed, index, chance),
        mutated_bytes(client_hello(chance), chance, (b"\x16\x03\x01", b"\xff\xff", b"\0" * 20_000)),
        f"{seed}.{index}.message",
        chance.random() < 0.1,
    )


def _frame(seed: int, index: int, chance: random.Random) -> MutatedFrame:
    """Half of the frames are of the APIs that may be sent without a login."""
    number = index * len(EVERY_VERSION) + chance.choice(_OF_LOGINS) if chance.random() < 0.5 else index
    frame = mutated_frame(seed, number)
    while frame.kind is Kind.WRONG_LENGTH:  # several requests, or a part of one
        number += 97 * len(EVERY_VERSION)
        frame = mutated_frame(seed, number)
    return frame


def mutated_message(message: bytes, login: MutatedLogin) -> bytes:
    """Return the message with some damage; a few stay as they are."""
    chance = random.Random(login.message_seed)
    return message if chance.random() < 0.05 else mutated_bytes(message, chance, _PARTS)


def mutated_bytes(data: bytes, chance: random.Random, inserts: Sequence[bytes]) -> bytes:
    """Return ``data`` with one to three places damaged, or something else of about that length."""
    if chance.random() < 0.1:
        return chance.choice((b"", b"\0", chance.randbytes(len(data)), bytes(len(data)), data * 2))
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        at = chance.randrange(len(damaged) + 1)
        match chance.randrange(5):
            case 0 if at < len(damaged):
                damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                del damaged[at:]
            case 2:
                del damaged[at : at + chance.choice((1, 2, 8))]
            case 3:
                damaged[at:at] = chance.choice(inserts)
            case _:
                damaged[at : at + 1] = chance.randbytes(1)
    return bytes(damaged)


def client_hello(chance: random.Random) -> bytes:
    """Return a ClientHello of TLS 1.3 that a server answers (RFC 8446, 4.1.2)."""
    extensions = b"".join(
        _extension(kind, body)
        for kind, body in (
            (10, _sized(2, b"\0\x1d\0\x17")),  # the groups x25519 and secp256r1
            (13, _sized(2, b"\x04\x03\x08\x04\x04\x01")),  # signature algorithms
            (43, _sized(1, b"\x03\x04\x03\x03")),  # versions
            (51, _sized(2, b"\0\x1d" + _sized(2, chance.randbytes(32)))),  # a key share
        )
    )
    body = (
        b"\x03\x03"
        + chance.randbytes(32)
        + _sized(1, chance.randbytes(32))
        + _sized(2, b"\x13\x01\x13\x02\xc0\x2b\xc0\x2f")
        + _sized(1, b"\0")
        + _sized(2, extensions)
    )
    return b"\x16\x03\x01" + _sized(2, b"\x01" + _sized(3, body))


def _extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2, "big") + _sized(2, body)


def _sized(size: int, body: bytes) -> bytes:
    return len(body).to_bytes(size, "big") + body
