"""ProveBroker, Nilometer's own API: two brokers authenticate each other on a new connection.

Between brokers, before any other request; not advertised in ApiVersions. There are two requests on one
connection: the response to the first, which has no proof, has the acceptor's nonce and proof; the second has
the initiator's proof. :mod:`nilometer.cluster.cluster_secret` describes the proofs. If the user of the
connection is the initiator's identity, there is one request, whose response has neither nonce nor proof.
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
    """The id of the broker that connects."""
    expected_broker_id: int = -1
    """The id of the broker that it wants to connect to."""
    secret_number: int = -1
    """The number of the current cluster secret of the broker that connects."""
    nonce: bytes = b""
    """Empty: the initiator gives no proof; its connection's user is its identity."""
    proof: bytes = b""
    """Only in the second request, which has no other field."""


class ProveBrokerResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    __api_key__: ClassVar[int] = int(KEY)
    __version__: ClassVar[int] = 0

    error_code: int = 0
    message: str = ""
    secret_number: int = -1
    """The number of the cluster secret that both proofs use."""
    nonce: bytes = b""
    proof: bytes = b""
