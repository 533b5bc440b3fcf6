"""An issuer of tokens: its keys are made here, its tokens are signed with them, and its JWKS document."""

from __future__ import annotations

import json
import time
from functools import cache

from joserfc import jwk, jws

AUDIENCE = "nilometer"
ISSUER = "https://issuer.example"


def rsa_key(number: int = 0) -> jwk.RSAKey:
    """``number`` selects one of several keys."""
    return _rsa_key(number)


@cache
def _rsa_key(number: int) -> jwk.RSAKey:
    """Each key is made once, since that takes a while."""
    return jwk.RSAKey.generate_key(2048, private=True)


@cache
def ec_key(curve: str = "P-256") -> jwk.ECKey:
    return jwk.ECKey.generate_key(curve, private=True)


def jwks(**keys: jwk.Key) -> bytes:
    """Return the document with the public keys, by key id."""
    return json.dumps(
        {"keys": [key.as_dict(private=False) | {"kid": kid} for kid, key in keys.items()]}
    ).encode()


def claims(**changes: object) -> dict[str, object]:
    """Return the claims of a good token of alice; a change to None removes a claim."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 3600}
    return {name: value for name, value in (good | changes).items() if value is not None}


def signed(
    key: jwk.Key,
    content: dict[str, object] | bytes,
    *,
    kid: str | None = "one",
    alg: str = "RS256",
    **header: object,
) -> str:
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    protected = {"alg": alg, **({} if kid is None else {"kid": kid}), **header}
    registry = jws.JWSRegistry(algorithms=[alg], strict_check_header=False)
    return jws.serialize_compact(protected, payload, key, registry=registry)
