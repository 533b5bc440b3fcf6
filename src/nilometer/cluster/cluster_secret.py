"""The cluster's secret and the proofs made with it, by which its brokers authenticate each other.

Clients do not know the secret. It is stored in the coordination store, never in the metadata log. There are
up to two: a rotation makes a new current secret, and the previous one stays valid until the next rotation,
for brokers that have not read the new one yet.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

KEY_BYTES = 32
FORMAT = 1


class UnreadableSecret(Exception):
    """The stored secret is damaged or has a newer format; the message says which."""


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    number: int
    """0 for the first secret; incremented by each rotation."""
    key: bytes = field(repr=False)


class ClusterSecrets(msgspec.Struct, frozen=True):
    current: ClusterSecret
    previous: ClusterSecret | None = None

    @classmethod
    def first(cls, key: bytes) -> ClusterSecrets:
        return cls(ClusterSecret(0, key))

    def rotated(self, key: bytes) -> ClusterSecrets:
        return ClusterSecrets(ClusterSecret(self.current.number + 1, key), self.current)

    def numbered(self, number: int) -> ClusterSecret | None:
        """Return the valid secret with that number, or None."""
        for secret in (self.current, self.previous):
            if secret is not None and secret.number == number:
                return secret
        return None


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    number: int
    current: bytes
    previous: bytes | None = None


def encode_secrets(secrets: ClusterSecrets) -> bytes:
    previous = None if secrets.previous is None else secrets.previous.key
    return msgspec.json.encode(
        _Document(
            format=FORMAT, number=secrets.current.number, current=secrets.current.key, previous=previous
        )
    )


def decode_secrets(data: bytes) -> ClusterSecrets:
    """Parse the stored secrets. Raises UnreadableSecret; its message never contains a key."""
    try:
        found = msgspec.json.decode(data, type=_Document)
    except msgspec.MsgspecError:
        raise UnreadableSecret("the cluster secret is not readable") from None
    if found.format > FORMAT:
        raise UnreadableSecret(
            f"the cluster secret has format {found.format}, but this version reads formats up to {FORMAT}"
        )
    keys = (found.current, found.current if found.previous is None else found.previous)
    if found.number < 0 or any(len(key) != KEY_BYTES for key in keys):
        raise UnreadableSecret("the cluster secret is incomplete")
    current = ClusterSecret(found.number, found.current)
    previous = None if found.previous is None else ClusterSecret(found.number - 1, found.previous)
    return ClusterSecrets(current, previous)


# The proof that a process is a broker of the cluster: an HMAC-SHA256, made with the cluster's secret.
#
#     initiator ── its id, the id it expects, its nonce ──────────▶ acceptor
#     initiator ◀── the acceptor's nonce and proof ───────────────  acceptor
#     initiator ── its proof, once the acceptor's is right ───────▶ acceptor
#
# A proof covers the protocol's name, the side that sends it, the cluster id, both broker ids, both nonces,
# the secret's number, and the address of an exchange that only asks who listens there. So a proof of one side
# is not valid for the other side (no reflection), in another exchange (no replay), between other brokers or
# in another cluster. It authenticates the peer when it connects, but does not protect the bytes that follow:
# only TLS can do that.

NONCE_BYTES = 32
PROOF_BYTES = 32
_PROTOCOL = b"nilometer broker proof, version 0"


class Side(enum.Enum):
    INITIATOR = b"initiator"
    ACCEPTOR = b"acceptor"


class ProofExchange(msgspec.Struct, frozen=True):
    """The values that both sides sent on one connection; the nonces are random."""

    cluster_id: str
    initiator_id: int
    acceptor_id: int
    initiator_nonce: bytes
    acceptor_nonce: bytes
    asked_at: str = ""
    """Not empty: the initiator only asks which node of a metadata quorum listens at this address."""


def broker_proof(secret: ClusterSecret, side: Side, exchange: ProofExchange) -> bytes:
    """Return the proof that ``side`` sends to the other side."""
    parts = (
        _PROTOCOL,
        side.value,
        exchange.cluster_id.encode(),
        exchange.initiator_id.to_bytes(8, "big", signed=True),
        exchange.acceptor_id.to_bytes(8, "big", signed=True),
        exchange.initiator_nonce,
        exchange.acceptor_nonce,
        secret.number.to_bytes(8, "big", signed=True),
        *((exchange.asked_at.encode(),) if exchange.asked_at else ()),
    )
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret.key, framed, hashlib.sha256).digest()


def is_proof(secret: ClusterSecret, side: Side, exchange: ProofExchange, proof: bytes) -> bool:
    """Return whether ``proof`` is the proof of ``side``. Compares in constant time."""
    return hmac.compare_digest(broker_proof(secret, side, exchange), proof)
