"""Both sides of a SCRAM exchange. The order of the messages is in :mod:`nilometer.security.scram`."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from nilometer.security.sasl import SaslRejected, SaslServer
from nilometer.security.scram import (
    ITERATIONS_MIN,
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


class ScramServer(SaslServer):
    """Invariants: an unknown user fails at the last message, as one with a wrong password does; the two cases
    take the same steps."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        nonce: str,
        placeholder_key: bytes,
    ) -> None:
        """``find`` returns a user's credential; ``nonce``: a random text for this exchange alone;
        ``placeholder_key``: of :func:`~nilometer.security.scram.placeholder_credential`."""
        self._mechanism = mechanism
        self._find = find
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
        known = None if first.has_token else self._find(first.user)
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
        self._user = first.user
        return f"v={encode_base64(sign(mechanism, credential.server_key, signed))}".encode()


class ScramClient:
    """Invariant: the exchange is complete only if the server has proved that it knows the user's keys."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        """``nonce``: a random text for this exchange alone."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escape(user)},r={nonce}"
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
