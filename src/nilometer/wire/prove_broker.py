"""ProveBroker, Nilometer's own API: a broker that connects and the one that accepts prove themselves.

Between brokers, before anything else, and not advertised. Two requests on one connection: the first, without
a proof, is answered with the acceptor's nonce and proof; the second brings the initiator's proof. What the
proofs cover: :mod:`nilometer.cluster.broker_proof`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from nilometer.wire.api_keys import NilometerApiKey

KEY = NilometerApiKey.PROVE_BROKER


class ProveBrokerRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    cluster_id: str = ""
    broker_id: int = -1
    """Of the broker that connects."""
    expected_broker_id: int = -1
    """Of the broker that it wants to reach."""
    secret_number: int = -1
    """The current secret of the broker that connects."""
    nonce: bytes = b""
    proof: bytes = b""
    """Only in the second request, which has nothing else."""


class ProveBrokerResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    message: str = ""
    secret_number: int = -1
    """The secret by which both sides prove themselves."""
    nonce: bytes = b""
    proof: bytes = b""
