"""The public keys of an issuer of tokens (JWKS, RFC 7517) and the verification of signatures (RFC 7515).

Only signatures by private keys are accepted: RSA (RS and PS) and elliptic curves (ES). A token that is not
signed (``none``), or signed by a shared secret (HS), is refused before any key is looked for, and the key's
type must be that of the algorithm: a public key is never taken as a shared secret. What an unauthenticated
client may have computed is bounded: the size of its token, and the keys that are tried for it.

Needs joserfc (the extra ``oauth``); import this module only where tokens are verified.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import cast

import msgspec
from joserfc import jwk, jws
from joserfc.errors import JoseError

from nilometer.security.oauthbearer import InvalidToken, UnknownKey

KEY_TYPES = {
    f"{family}{bits}": kind
    for family, kind in (("RS", "RSA"), ("PS", "RSA"), ("ES", "EC"))
    for bits in (256, 384, 512)
}
"""The accepted algorithms, with the type of their keys."""
TOKEN_CHARACTERS_MAX = 64 * 1024
"""Issuers' largest tokens, with hundreds of groups or roles, have about 30,000."""
HEADER_CHARACTERS_MAX = 8192
KEY_ID_CHARACTERS_MAX = 1000
"""Kafka's limit: no issuer has longer ones."""
KEYS_MAX = 100
KEYS_TRIED_MAX = 8
"""The number of keys that are tried for a token that names none (``kid``), or one that several keys have."""
RSA_BITS_MIN = 2048


class InvalidKeys(Exception):
    """A text is no set of keys, or has none that can be used; the message says why."""


class _Registry(jws.JWSRegistry):
    max_header_length = HEADER_CHARACTERS_MAX
    max_payload_length = 1 << 20


_REGISTRY = _Registry(algorithms=list(KEY_TYPES), strict_check_header=False)


class _SigningKey(msgspec.Struct, frozen=True):
    key_id: str | None
    kind: str
    algorithm: str | None
    """The only algorithm of the key; None: each of its type."""
    key: jwk.Key


class SigningKeys:
    def __init__(self, keys: Sequence[_SigningKey], left_out: int) -> None:
        self._keys = keys
        self.left_out = left_out
        """How many keys of the text cannot be used for signatures of tokens."""

    def __len__(self) -> int:
        return len(self._keys)

    def verified_claims(self, token: str) -> dict[str, object]:
        """Return the claims of a token whose signature is right. Raises InvalidToken, UnknownKey."""
        algorithm, key_id = _header(token)
        candidates = self._candidates(algorithm, key_id)
        for candidate in candidates[:KEYS_TRIED_MAX]:
            try:
                payload = jws.deserialize_compact(token, candidate.key, registry=_REGISTRY).payload
            except (JoseError, ValueError, TypeError):
                continue  # another key may have signed it
            return _object(payload, "claims")
        if len(candidates) > KEYS_TRIED_MAX:
            tried = f"the first {KEYS_TRIED_MAX} of {len(candidates)} keys"
            raise InvalidToken(f"the token does not name one key (kid), and none of {tried} has signed it")
        raise InvalidToken("the signature is wrong")

    def _candidates(self, algorithm: str, key_id: str | None) -> list[_SigningKey]:
        named = [key for key in self._keys if key_id is None or key.key_id == key_id]
        if not named:
            raise UnknownKey("the token is signed by a key that is not known")
        return [
            key for key in named if key.kind == KEY_TYPES[algorithm] and key.algorithm in (None, algorithm)
        ]


NO_KEYS = SigningKeys((), 0)


def _header(token: str) -> tuple[str, str | None]:
    """Return the algorithm and the id of the key."""
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken(f"the token has more than {TOKEN_CHARACTERS_MAX} characters")
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > HEADER_CHARACTERS_MAX:
        raise InvalidToken("the token is no signed JSON web token")
    try:
        encoded = base64.b64decode(parts[0] + "=" * (-len(parts[0]) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidToken("the token's header is not base 64") from None
    header = _object(encoded, "header")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in KEY_TYPES:
        raise InvalidToken(f"the token's algorithm is not one of {', '.join(KEY_TYPES)}")
    if "crit" in header:
        raise InvalidToken("the token's header has an extension (crit) that is not understood")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARACTERS_MAX):
        raise InvalidToken("the id of the token's key is no text, or too long")
    return algorithm, key_id


def _object(text: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidToken(f"the token's {what} are no JSON object")
    return cast("dict[str, object]", value)


def parse_keys(text: bytes) -> SigningKeys:
    """Read a JWKS document, and leave out the keys that cannot be used. Raises InvalidKeys."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidKeys("it is not JSON") from None
    found = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise InvalidKeys('it is no set of keys: a JSON object with a list "keys" is expected')
    entries = cast("list[object]", found)
    if len(entries) > KEYS_MAX:
        raise InvalidKeys(f"it has {len(entries)} keys; at most {KEYS_MAX} are read")
    keys = [key for entry in entries if (key := _signing_key(entry)) is not None]
    if not keys:
        raise InvalidKeys("it has no RSA key of at least 2048 bits and no EC key for signatures")
    return SigningKeys(keys, len(entries) - len(keys))


def _signing_key(entry: object) -> _SigningKey | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, object]", entry)
    kind, key_id, algorithm = fields.get("kty"), fields.get("kid"), fields.get("alg")
    if kind not in KEY_TYPES.values() or fields.get("use") not in (None, "sig"):
        return None
    if algorithm is not None and (not isinstance(algorithm, str) or algorithm not in KEY_TYPES):
        return None
    public = {name: fields[name] for name in ("kty", "n", "e", "crv", "x", "y") if name in fields}
    if kind == "RSA" and _bits(public.get("n")) < RSA_BITS_MIN:
        return None
    try:
        key = jwk.import_key(cast("dict[str, str | list[str]]", public))
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    kid = key_id if isinstance(key_id, str) else None
    return _SigningKey(kid, str(kind), algorithm, key)


def _bits(number: object) -> int:
    if not isinstance(number, str):
        return 0
    try:
        encoded = base64.b64decode(number + "=" * (-len(number) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return 0
    return int.from_bytes(encoded, "big").bit_length()
