"""A connection proves once that it is from a broker of this cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from nilometer.broker.api.between_brokers import handle_prove_broker
from nilometer.broker.settings.broker_authentication import BrokerAuthentication
from nilometer.cluster.cluster_secret import KEY_BYTES, NONCE_BYTES, ClusterSecrets
from nilometer.wire.errors import ErrorCode
from nilometer.wire.own_apis import ProveBrokerRequest


async def test_a_connection_has_one_attempt() -> None:
    secrets = ClusterSecrets.first(b"k" * KEY_BYTES)

    async def numbered(number: int) -> object:
        return secrets.numbered(number)

    parts: Any = SimpleNamespace(
        cluster_id="cluster",
        config=SimpleNamespace(node_id=1, broker_authentication=BrokerAuthentication.SECRET),
        secrets=SimpleNamespace(secrets=secrets, numbered=numbered),
        tasks=SimpleNamespace(spawn=lambda work: work),
        runtime=SimpleNamespace(
            entropy=SimpleNamespace(bytes=bytes),
            with_secret=lambda _name, compute: compute(),
        ),
    )
    body = ProveBrokerRequest(
        cluster_id="cluster",
        broker_id=2,
        expected_broker_id=1,
        secret_number=0,
        nonce=b"n" * NONCE_BYTES,
        proof=b"",
    )
    connection = SimpleNamespace(proof_begun=False, pending_proof=None)
    request: Any = SimpleNamespace(body=body, connection=connection, respond=lambda **found: found)
    begun = await cast(Any, handle_prove_broker(parts, request))
    assert begun["proof"] and connection.pending_proof is not None
    again = cast(Any, handle_prove_broker(parts, request))
    assert again["error_code"] == ErrorCode.invalid_request
    assert again["message"] == "this connection has already begun a proof"
