"""Authenticates a test's connection as a broker, by an exchange of proofs with the cluster's secret."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.secret_keeper import SecretKeeper
from nilometer.broker.settings.broker_authentication import BrokerAuthentication
from nilometer.cluster.cluster_secret import (
    ClusterSecret,
    ClusterSecrets,
    ProofExchange,
    Side,
    broker_proof,
    decode_secrets,
    is_proof,
)
from nilometer.coordination.local import layout
from nilometer.runtime import Runtime
from nilometer.wire import own_apis as wire
from support.wire.wire_peer import WirePeer

NONCE = bytes(range(32))


class KnownSecrets:
    """Replaces a SecretKeeper: has the secrets that the test gives it."""

    def __init__(self, secrets: ClusterSecrets) -> None:
        self.secrets = secrets

    async def numbered(self, number: int) -> ClusterSecret | None:
        return self.secrets.numbered(number)


@dataclass(frozen=True)
class Identity:
    cluster_id: str
    secrets: ClusterSecrets

    @classmethod
    def of_store(cls, folder: Path) -> Identity:
        """Read the identity from the files of a folder store."""
        described = layout.unwrap("store", (folder / layout.STORE).read_bytes())[1]
        newest = max((folder / layout.MEMBERS).iterdir())
        secrets = decode_secrets(layout.unwrap(str(newest), newest.read_bytes())[1])
        return cls(msgspec.json.decode(described)["cluster_id"], secrets)

    def peers(
        self,
        as_broker: int,
        runtime: Runtime,
        authentication: BrokerAuthentication = BrokerAuthentication.SECRET,
    ) -> BrokerPeers:
        """Return the authentication of ``as_broker`` for connections of Nilometer's client."""
        keeper = cast(SecretKeeper, KnownSecrets(self.secrets))
        return BrokerPeers(
            as_broker,
            self.cluster_id,
            runtime,
            keeper,
            listener="PLAINTEXT",
            authentication=authentication,
        )

    def hello(self, as_broker: int, to_broker: int, nonce: bytes = NONCE) -> dict[str, object]:
        """Return the fields of the first request of the exchange."""
        return {
            "cluster_id": self.cluster_id,
            "broker_id": as_broker,
            "expected_broker_id": to_broker,
            "secret_number": self.secrets.current.number,
            "nonce": nonce,
        }


def ask_proof(peer: WirePeer, **fields: object) -> wire.ProveBrokerResponse:
    answer: wire.ProveBrokerResponse = peer.ask(wire.PROVE_BROKER, 0, **fields)
    return answer


def prove(peer: WirePeer, identity: Identity, as_broker: int, to_broker: int) -> None:
    """Authenticate ``peer``'s connection as ``as_broker``, and check the proof of the other broker."""
    told = ask_proof(peer, **identity.hello(as_broker, to_broker))
    assert told.error_code == 0, told.message
    exchange = ProofExchange(identity.cluster_id, as_broker, to_broker, NONCE, told.nonce)
    secret = identity.secrets.numbered(told.secret_number)
    assert secret is not None
    assert is_proof(secret, Side.ACCEPTOR, exchange, told.proof)
    done = ask_proof(peer, proof=broker_proof(secret, Side.INITIATOR, exchange))
    assert done.error_code == 0, done.message
