"""Plays mutated logins on a broker, and checks each: no client is served without the password.

What follows each of them is a Metadata request. Invariants, of every login:

- at most one response comes to what was mutated, with its correlation id, and none to an API that needs a
  login;
- the Metadata request is answered if and only if the login was right; else the connection ends.
"""

from __future__ import annotations

import base64
import binascii
import re
import socket
import struct
from functools import cache

from nilometer.security.oauthbearer import OAuthBearerClient
from nilometer.security.scram import (
    ScramMechanism,
    client_key_of,
    encode_base64,
    parse_server_first,
    salted_password,
    sign,
    stored_key_of,
    xor,
)
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request

from ..brokers.secured_broker import ALICE, PASSWORD, SecuredBroker
from ..issuer import claims, rsa_key, signed
from ..ports import HOST
from .mutated_logins import Exchange, MutatedLogin, Stage, mutated_message
from .wire_peer import ConnectionEnded, WirePeer

_AUTHENTICATE_ID, _METADATA_ID = 0x7FFF_FFF1, 0x7FFF_FFF0
_NONCE = "aNonceOfTheFuzzer"
_TOKEN = re.compile(rb"Bearer ([\w-]+\.[\w-]+)\.([\w-]+)")
_SIGNATURE = re.compile(rb"[A-Za-z0-9_-]*")
_METADATA = encode_request(_METADATA_ID, "fuzzer", api(ApiKey.METADATA, 12).request(topics=()))


class LoginFuzz:
    def __init__(self, secured: SecuredBroker) -> None:
        self._secured = secured
        self._token = signed(rsa_key(), claims())
        self.played = 0
        self.answered = 0
        """How many got a response."""
        self.logged_in = 0
        """How many were right after all."""

    def play(self, login: MutatedLogin) -> None:
        """Raises AssertionError, also if the broker neither answers nor ends the connection in time."""
        self.played += 1
        try:
            if login.stage is Stage.TLS:
                self._play_hello(login)
            else:
                with self._open(login) as peer:
                    self._play(peer, login)
        except TimeoutError:
            raise AssertionError(f"no answer, no end: {login.describe()}") from None

    def _open(self, login: MutatedLogin) -> WirePeer:
        port = self._secured.sasl_ssl if login.encrypted else self._secured.sasl
        return WirePeer(f"{HOST}:{port}", tls=self._secured.context if login.encrypted else None)

    def _play_hello(self, login: MutatedLogin) -> None:
        port = self._secured.sasl_ssl if login.encrypted else self._secured.mutual
        with self._secured.connect(port) as raw:
            try:
                raw.sendall(login.hello)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(1 << 16):
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass

    def _play(self, peer: WirePeer, login: MutatedLogin) -> None:
        match login.stage:
            case Stage.FIRST:
                self._play_frame(peer, login, (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE))
            case Stage.SECOND:
                _begin(peer, 1, login.exchange)
                self._play_frame(peer, login, (ApiKey.SASL_AUTHENTICATE,))
            case _:
                self._play_message(peer, login)

    def _play_frame(self, peer: WirePeer, login: MutatedLogin, served: tuple[ApiKey, ...]) -> None:
        frame = login.frame.frame
        replies, is_served = _exchange(peer, frame)
        assert not is_served, f"served without a login: {login.describe()}"
        assert len(replies) <= 1, f"{len(replies)} responses: {login.describe()}"
        for reply in replies:
            key, expected = struct.unpack_from(">hxxi", frame, 4)
            assert key in served, f"a response to API {key}: {login.describe()}"
            assert reply[:4] == expected.to_bytes(4, "big", signed=True), (
                f"a response to the wrong request: {login.describe()}"
            )
            self.answered += 1

    def _play_message(self, peer: WirePeer, login: MutatedLogin) -> None:
        exchange = login.exchange
        _begin(peer, int(login.has_headers), exchange)
        right = self._right_message(peer, login)
        message = mutated_message(right, login)
        sent = _authenticate(message) if login.has_headers else struct.pack(">i", len(message)) + message
        replies, is_served = _exchange(peer, sent)
        if login.has_headers:
            ids = [int.from_bytes(reply[:4], "big") for reply in replies]
            assert ids in ([], [_AUTHENTICATE_ID]), f"responses to {ids}: {login.describe()}"
        if message == right and exchange is not Exchange.FIRST_256:
            assert is_served, f"the right login was refused: {login.describe()}"
        if is_served:
            assert _proves_password(message, right, exchange), (
                f"served without the password: {login.describe()}"
            )
        self.answered += len(replies)
        self.logged_in += is_served

    def _right_message(self, peer: WirePeer, login: MutatedLogin) -> bytes:
        """Return the message that is to be mutated, after the exchange up to it."""
        match login.exchange:
            case Exchange.PLAIN:
                return f"\0{ALICE}\0{PASSWORD}".encode()
            case Exchange.TOKEN:
                return OAuthBearerClient(self._token).begin()
            case _:
                return _right_scram_message(peer, login)


def _exchange(peer: WirePeer, sent: bytes) -> tuple[list[bytes], bool]:
    """Send bytes and the Metadata request; return the responses to the former, and whether the latter has
    one."""
    replies: list[bytes] = []
    try:
        peer.socket.sendall(sent + _METADATA)
        while True:
            reply = peer.receive()
            if reply[:4] == _METADATA_ID.to_bytes(4, "big"):
                return replies, True
            replies.append(reply)
    except TimeoutError:
        raise
    except (ConnectionEnded, OSError):  # ssl.SSLError is an OSError
        return replies, False


def _begin(peer: WirePeer, version: int, exchange: Exchange) -> None:
    answer = peer.ask(ApiKey.SASL_HANDSHAKE, version, mechanism=exchange.mechanism)
    assert answer.error_code == ErrorCode.none


def _authenticate(message: bytes) -> bytes:
    request = api(ApiKey.SASL_AUTHENTICATE, 2).request(auth_bytes=message)
    return encode_request(_AUTHENTICATE_ID, "fuzzer", request)


def _right_scram_message(peer: WirePeer, login: MutatedLogin) -> bytes:
    bare = f"n={ALICE},r={_NONCE}"
    first = f"n,,{bare}".encode()
    if not login.exchange.is_final:
        return first
    if login.has_headers:
        challenge = peer.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first).auth_bytes
    else:
        peer.tell_bytes(first)
        challenge = peer.receive()
    return _final(ScramMechanism(login.exchange.mechanism), bare, challenge)


def _final(mechanism: ScramMechanism, bare: str, challenge: bytes) -> bytes:
    first = parse_server_first(challenge)
    key = client_key_of(mechanism, _salted(mechanism, first.salt, first.iterations))
    without_proof = f"c=biws,r={first.nonce}"
    signed = f"{bare},{first.text},{without_proof}".encode()
    proof = xor(key, sign(mechanism, stored_key_of(mechanism, key), signed))
    return f"{without_proof},p={encode_base64(proof)}".encode()


@cache
def _salted(mechanism: ScramMechanism, salt: bytes, iterations: int) -> bytes:
    return salted_password(mechanism, PASSWORD, salt, iterations)


def _proves_password(message: bytes, right: bytes, exchange: Exchange) -> bool:
    """Whether a message that differs from the right one still shows the password: by rules of its own."""
    if exchange is Exchange.PLAIN:
        name = ALICE.encode()
        return message.split(b"\0") in ([each, name, PASSWORD.encode()] for each in (b"", name))
    if exchange is Exchange.TOKEN:
        return _has_token(message, right)
    if not exchange.is_final:
        return False
    start, _, proof = right.partition(b",p=")
    try:
        given = base64.b64decode(message.removeprefix(start + b",p="))
    except binascii.Error:
        return False
    return message.startswith(start + b",p=") and given == base64.b64decode(proof)


def _has_token(message: bytes, right: bytes) -> bool:
    """Whether ``message`` has the token of ``right``: what is signed, and its signature in some notation."""
    found = _TOKEN.search(right)
    assert found is not None
    content, signature = found.groups()
    given = _SIGNATURE.match(message.partition(content + b".")[2])
    return given is not None and _decoded(given[0]) == _decoded(signature)


def _decoded(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
