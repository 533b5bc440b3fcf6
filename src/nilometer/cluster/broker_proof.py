"""The proof that a process is a broker of the cluster: an HMAC-SHA256, made with the cluster's secret.

    initiator ── its id, the id it expects, its nonce ──────────▶ acceptor
    initiator ◀── the acceptor's nonce and proof ───────────────  acceptor
    initiator ── its proof, once the acceptor's is right ───────▶ acceptor

A proof covers the protocol's name, the side that sends it, the cluster id, both broker ids, both nonces and
the secret's number. So a proof of one side is not valid for the other side (no reflection), in another
exchange (no replay), between other brokers or in another cluster. It authenticates the peer when it connects,
but does not protect the bytes that follow: only TLS can do that.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from dataclasses import dataclass

from nilometer.cluster.cluster_secret import ClusterSecret

NONCE_BYTES = 32
PROOF_BYTES = 32
_PROTOCOL = b"nilometer broker proof, version 0"


class Side(enum.Enum):
    INITIATOR = b"initiator"
    ACCEPTOR = b"acceptor"


@dataclass(frozen=True, slots=True)
class ProofExchange:
    """The values that both sides sent on one connection; the nonces are random."""

    cluster_id: str
    initiator_id: int
    acceptor_id: int
    initiator_nonce: bytes
    acceptor_nonce: bytes


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
    )
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.new(secret.key, framed, hashlib.sha256).digest()


def is_proof(secret: ClusterSecret, side: Side, exchange: ProofExchange, proof: bytes) -> bool:
    """Return whether ``proof`` is the proof of ``side``. Compares in constant time."""
    return hmac.compare_digest(broker_proof(secret, side, exchange), proof)
