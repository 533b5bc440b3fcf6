"""The key by which the nodes of a metadata quorum know each other, and the proof that a node has it.

The proof is the one of brokers (:mod:`nilometer.cluster.cluster_secret`), with the key of the file in place
of the cluster's secret, which is in the metadata log that the nodes are to agree on.
"""

from __future__ import annotations

import hashlib

import msgspec

from nilometer.client.network.connection import Connection
from nilometer.cluster.cluster_secret import (
    NONCE_BYTES,
    ClusterSecret,
    ProofExchange,
    Side,
    broker_proof,
    is_proof,
)
from nilometer.runtime import Disk, Entropy
from nilometer.wire import own_apis
from nilometer.wire.errors import ErrorCode, KafkaError

KEY_BYTES_MIN = 32
KEY_BYTES_MAX = 4096
ANY_NODE = -1
"""The id of a node that connects to another one without knowing which."""


class UnusableKey(Exception):
    """The key file is missing, too short, or others can read it; the message says which."""


class QuorumKey(msgspec.Struct, frozen=True):
    secret: ClusterSecret

    @classmethod
    def of(cls, content: bytes) -> QuorumKey:
        return cls(ClusterSecret(0, hashlib.sha256(content).digest()))


def read_key(disk: Disk, path: str) -> QuorumKey:
    """Raises UnusableKey. Blocks."""
    try:
        is_private = disk.is_private(path)
        content = disk.read_file(path).strip()
    except OSError as error:
        raise UnusableKey(f"nilometer.quorum.secret.file {path}: {error.strerror or error}") from error
    if not is_private:
        raise UnusableKey(
            f"nilometer.quorum.secret.file {path} can be read by others than its owner: chmod 600 {path}"
        )
    if not KEY_BYTES_MIN <= len(content) <= KEY_BYTES_MAX:
        raise UnusableKey(
            f"nilometer.quorum.secret.file {path} has {len(content)} bytes: {KEY_BYTES_MIN} to "
            f"{KEY_BYTES_MAX}, for example of: openssl rand -hex 32"
        )
    return QuorumKey.of(content)


# The proof. A connection has one attempt: ``Proving`` is the accepting side of one.


async def prove(connection: Connection, key: QuorumKey, own_id: int, entropy: Entropy) -> None:
    """Prove that this node has the key, and let the other side prove it. Raises KafkaError."""
    nonce = entropy.bytes(NONCE_BYTES)
    answer = await _ask(connection, own_apis.ProveBrokerRequest(broker_id=own_id, nonce=nonce))
    exchange = ProofExchange("", own_id, ANY_NODE, nonce, answer.nonce)
    if not is_proof(key.secret, Side.ACCEPTOR, exchange, answer.proof):
        where = f"{connection.host}:{connection.port}"
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            f"{where} is no node of this quorum: it does not have the key of nilometer.quorum.secret.file",
        )
    proof = broker_proof(key.secret, Side.INITIATOR, exchange)
    await _ask(connection, own_apis.ProveBrokerRequest(proof=proof))


async def _ask(connection: Connection, request: own_apis.ProveBrokerRequest) -> own_apis.ProveBrokerResponse:
    answer: own_apis.ProveBrokerResponse = await connection.send(request)
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), answer.message)
    return answer


class Proving:
    """The other side of a connection proves itself."""

    def __init__(self, key: QuorumKey, entropy: Entropy) -> None:
        self._key = key
        self._entropy = entropy
        self._exchange: ProofExchange | None = None
        self.is_proved = False

    def answer(self, request: own_apis.ProveBrokerRequest) -> own_apis.ProveBrokerResponse | None:
        """Return the response; None if the request is not the next one, or its proof is wrong."""
        exchange = self._exchange
        if exchange is None:
            if len(request.nonce) != NONCE_BYTES:
                return None
            nonce = self._entropy.bytes(NONCE_BYTES)
            exchange = ProofExchange("", request.broker_id, ANY_NODE, request.nonce, nonce)
            self._exchange = exchange
            proof = broker_proof(self._key.secret, Side.ACCEPTOR, exchange)
            return own_apis.ProveBrokerResponse(nonce=nonce, proof=proof)
        if self.is_proved or not is_proof(self._key.secret, Side.INITIATOR, exchange, request.proof):
            return None
        self.is_proved = True
        return own_apis.ProveBrokerResponse()

    @property
    def node_id(self) -> int:
        return -1 if self._exchange is None else self._exchange.initiator_id
