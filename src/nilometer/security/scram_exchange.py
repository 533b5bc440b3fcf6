"""Both sides of a SCRAM exchange. The order of the messages is in :mod:`nilometer.security.scram`."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import NamedTuple

from nilometer.security.sasl import SaslRejected, SaslServer
from nilometer.security.scram import (
    ITERATIONS_MIN,
    TOKEN_EXTENSION,
    ClientFirst,
    ScramCredential,
    ScramMechanism,
    client_key_of,
    encode_base64,
    escape,
    parse_client_final,
    parse_client_first,
    parse_server_final,
    parse_server_first,
    placeholder_credential,
    salted_password,
    server_key_of,
    sign,
    stored_key_of,
    xor,
)

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
        exchange alone; ``placeholder_key``: of :func:`~nilometer.security.scram.placeholder_credential`."""
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
