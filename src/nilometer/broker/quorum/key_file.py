"""The key by which the nodes of a metadata quorum know each other, and the proof that a node has it.

The proof is the one of brokers (:mod:`nilometer.cluster.cluster_secret`), with the key of the file in place
of the cluster's secret, which is in the metadata log that the nodes are to agree on.

A client that may change the voters can name any address, and have the leader connect to it. What listens
there must not be let in as the leader by passing the leader's proof on to a node. So there are two kinds of
proof. One lets a node in; it is for the node id to which the initiator connects, if it knows that. The other
one (``asked_at``) only asks who listens; it is for the address that was named, and a node with another
address refuses it.
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
"""The id that is expected of a bootstrap server: any."""


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


def address_text(host: str, port: int) -> str:
    """Return an address as both sides of a proof write it."""
    return f"{host.lower()}:{port}"


async def prove(
    connection: Connection,
    key: QuorumKey,
    own_id: int,
    entropy: Entropy,
    *,
    expected_id: int = ANY_NODE,
    asked_at: str = "",
) -> None:
    """Prove that this node has the key, and let the other side prove it: as node ``expected_id``, or as the
    one whose address is ``asked_at``, which is then asked who it is and nothing else. Raises KafkaError."""
    nonce = entropy.bytes(NONCE_BYTES)
    request = own_apis.ProveBrokerRequest(
        broker_id=own_id, expected_broker_id=expected_id, nonce=nonce, asked_at=asked_at
    )
    answer = await _ask(connection, request)
    exchange = ProofExchange("", own_id, expected_id, nonce, answer.nonce, asked_at)
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

    def __init__(self, key: QuorumKey, entropy: Entropy, own_id: int, own_address: str) -> None:
        """``own_address``: where the others reach this node, by :func:`address_text`."""
        self._key = key
        self._entropy = entropy
        self._own_id = own_id
        self._own_address = own_address
        self._exchange: ProofExchange | None = None
        self.is_proved = False

    def answer(self, request: own_apis.ProveBrokerRequest) -> own_apis.ProveBrokerResponse | None:
        """Return the response, with an error code if another node is meant; None if the request is not the
        next one, or its proof is wrong."""
        exchange = self._exchange
        if exchange is None:
            if len(request.nonce) != NONCE_BYTES:
                return None
            refusal = self._refusal(request)
            if refusal is not None:
                code = int(ErrorCode.cluster_authorization_failed)
                return own_apis.ProveBrokerResponse(error_code=code, message=refusal)
            nonce = self._entropy.bytes(NONCE_BYTES)
            expected, asked_at = request.expected_broker_id, request.asked_at
            exchange = ProofExchange("", request.broker_id, expected, request.nonce, nonce, asked_at)
            self._exchange = exchange
            proof = broker_proof(self._key.secret, Side.ACCEPTOR, exchange)
            return own_apis.ProveBrokerResponse(nonce=nonce, proof=proof)
        if self.is_proved or not is_proof(self._key.secret, Side.INITIATOR, exchange, request.proof):
            return None
        self.is_proved = True
        return own_apis.ProveBrokerResponse()

    def _refusal(self, request: own_apis.ProveBrokerRequest) -> str | None:
        if request.broker_id == self._own_id:
            return "the node has connected to itself, or another one has its node.id"
        if request.expected_broker_id not in (ANY_NODE, self._own_id):
            return f"another node than {request.expected_broker_id} listens there"
        if request.asked_at not in ("", self._own_address):
            return (
                f"the node that listens there has another address than {request.asked_at}: give the one that "
                "it advertises"
            )
        return None

    @property
    def only_asks(self) -> bool:
        """Whether the other side may ask who this node is, and nothing else."""
        return self._exchange is not None and self._exchange.asked_at != ""

    @property
    def node_id(self) -> int:
        return -1 if self._exchange is None else self._exchange.initiator_id
