"""The key by which the nodes of a metadata quorum know each other, and the proof that a node has it.

The proof is the one of brokers (:mod:`nilometer.cluster.cluster_secret`), with the key of the file in place
of the cluster's secret, which is in the metadata log that the nodes are to agree on.

A client that may change the voters can name any address, and have the leader connect to it. What listens
there must not be let in as the leader by passing the leader's proof on to a node. So there are two kinds of
proof. One lets a node in; it is for the node id to which the initiator connects, if it knows that. The other
one (``asked_at``) only asks who listens; it is for the address that was named, and a node with another
address refuses it.

While the key is changed a node has two. It names its present one; the other side proves that it has this one,
or else its own present one, which the node may have as its previous one. The rest is done with the same key.

The cluster's secret is encrypted with the key (AES-256-GCM) before it is proposed to the quorum: so it is in
the log, in snapshots and in copies of them (:class:`KeySealing`).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

import msgspec

from nilometer.broker.settings.quorum import PREVIOUS_SECRET_FILE, SECRET_FILE
from nilometer.client.network.connection import Connection
from nilometer.cluster.cluster_secret import (
    NONCE_BYTES,
    ClusterSecret,
    ProofExchange,
    Side,
    broker_proof,
    is_proof,
)
from nilometer.coordination.store import StoreDamaged, StoreRefused
from nilometer.runtime import Disk, Entropy, WithSecret, with_secret
from nilometer.wire import own_apis
from nilometer.wire.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES_MIN = 32
KEY_BYTES_MAX = 4096
ANY_NODE = -1
"""The id that is expected of a bootstrap server: any."""


class UnusableKey(Exception):
    """The key file is missing, too short, or others can read it; the message says which."""


class QuorumKey(msgspec.Struct, frozen=True):
    secret: ClusterSecret
    previous: ClusterSecret | None = None
    """The one before, which counts as well."""

    @classmethod
    def of(cls, content: bytes, previous: bytes | None = None) -> QuorumKey:
        return cls(_secret_of(content), None if previous is None else _secret_of(previous))

    @property
    def secrets(self) -> tuple[ClusterSecret, ...]:
        return (self.secret,) if self.previous is None else (self.secret, self.previous)

    def named(self, name: str) -> ClusterSecret | None:
        """Return the one with this id; None: this node does not have it."""
        return next((one for one in self.secrets if key_id(one) == name), None)


def _secret_of(content: bytes) -> ClusterSecret:
    return ClusterSecret(0, hashlib.sha256(content).digest())


def key_id(secret: ClusterSecret) -> str:
    """Return what names a key and does not tell it: as a proof, it is no use to guess the key."""
    return hashlib.sha256(b"nilometer quorum key id" + secret.key).hexdigest()[: 2 * KEY_ID_BYTES]


def read_key_files(disk: Disk, path: str, previous_path: str | None = None) -> QuorumKey:
    """Raises UnusableKey. Blocks."""
    previous = None if previous_path is None else read_key(disk, previous_path, PREVIOUS_SECRET_FILE)
    return QuorumKey.of(read_key(disk, path), previous)


def read_key(disk: Disk, path: str, setting: str = SECRET_FILE) -> bytes:
    """Return the content of a key file. Raises UnusableKey. Blocks."""
    try:
        is_private = disk.is_private(path)
        content = disk.read_file(path).strip()
    except OSError as error:
        raise UnusableKey(f"{setting} {path}: {error.strerror or error}") from error
    if not is_private:
        raise UnusableKey(f"{setting} {path} can be read by others than its owner: chmod 600 {path}")
    if not KEY_BYTES_MIN <= len(content) <= KEY_BYTES_MAX:
        raise UnusableKey(
            f"{setting} {path} has {len(content)} bytes, and must have {KEY_BYTES_MIN} to {KEY_BYTES_MAX}, "
            "for example those of: openssl rand -hex 32"
        )
    return content


# The cluster's secret, encrypted. Sealed data is a byte SEALED, the key's id, a nonce, and what AES-256-GCM
# makes of the secret; the number of the secret is authenticated with it. Data that is not sealed is JSON.

SEALED = b"\x01"
UNSEAL = "unseal"
"""In recordings: the call whose result is the cluster's secret."""
KEY_ID_BYTES = 8
SEAL_NONCE_BYTES = 12
NEEDS_LIBRARY = (
    f"{SECRET_FILE} is given, with which the cluster's secret is encrypted: that needs the library "
    "cryptography. pip install 'nilometer[secure]'"
)


class KeySealing:
    """Implements :class:`~nilometer.coordination.quorum.store.Sealing` for a node with this key, or without
    one. The cipher is imported when it is needed."""

    def __init__(
        self, key: QuorumKey | None, entropy: Entropy, with_secret: WithSecret = with_secret
    ) -> None:
        self._key = key
        self._entropy = entropy
        self._with_secret = with_secret

    def seal(self, number: int, data: bytes) -> bytes:
        if self._key is None:
            return data
        secret, nonce = self._key.secret, self._entropy.bytes(SEAL_NONCE_BYTES)

        def seal() -> bytes:
            sealed = _cipher(secret).encrypt(nonce, data, _bound_to(number))
            return SEALED + bytes.fromhex(key_id(secret)) + nonce + sealed

        return self._with_secret("seal", seal)

    def unseal(self, number: int, data: bytes) -> bytes:
        if not data.startswith(SEALED):
            return data  # of a quorum that had no key then
        begin = len(SEALED) + KEY_ID_BYTES
        name, key = data[len(SEALED) : begin].hex(), self._key
        if key is None or not self._with_secret("is key", lambda: key.named(name) is not None):
            has = "not given" if self._key is None else "another one"
            raise StoreRefused(
                f"the cluster's secret is encrypted with the key {name}, and {SECRET_FILE} is {has}: give "
                "the key of the other nodes. While it is changed, "
                f"{PREVIOUS_SECRET_FILE} names the former one"
            )
        found = self._with_secret(UNSEAL, lambda: _unsealed(key, name, number, data[begin:]))
        if found is None:
            raise StoreDamaged("the cluster's secret in the metadata quorum is damaged")
        return found


def _unsealed(key: QuorumKey, name: str, number: int, data: bytes) -> bytes | None:
    """Return what a nonce and a sealed secret have; None if they are damaged."""
    secret = key.named(name)
    assert secret is not None, "the key has this name"
    cipher = _cipher(secret)
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(data[:SEAL_NONCE_BYTES], data[SEAL_NONCE_BYTES:], _bound_to(number))
    except (InvalidTag, ValueError):
        return None


def _bound_to(number: int) -> bytes:
    return b"nilometer cluster secret" + number.to_bytes(8, "big")


def _cipher(secret: ClusterSecret) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise StoreRefused(NEEDS_LIBRARY) from None
    own = hmac.new(secret.key, b"nilometer cluster secret", hashlib.sha256).digest()
    return AESGCM(own)


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
    with_secret: WithSecret = with_secret,
) -> None:
    """Prove that this node has the key, and let the other side prove it: as node ``expected_id``, or as the
    one whose address is ``asked_at``, which is then asked who it is and nothing else. Raises KafkaError."""
    nonce = entropy.bytes(NONCE_BYTES)
    request = own_apis.ProveBrokerRequest(
        broker_id=own_id,
        expected_broker_id=expected_id,
        nonce=nonce,
        asked_at=asked_at,
        key_id=key_id(key.secret),
    )
    answer = await _ask(connection, request)
    exchange = ProofExchange("", own_id, expected_id, nonce, answer.nonce, asked_at)
    proved = [
        one
        for one in key.secrets
        if with_secret("is proof", lambda one=one: is_proof(one, Side.ACCEPTOR, exchange, answer.proof))
    ]
    if not proved:
        where = f"{connection.host}:{connection.port}"
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            f"{where} is no node of this quorum: it does not have the key of nilometer.quorum.secret.file",
        )
    proof = with_secret("broker proof", lambda: broker_proof(proved[0], Side.INITIATOR, exchange))
    await _ask(connection, own_apis.ProveBrokerRequest(proof=proof))


async def _ask(connection: Connection, request: own_apis.ProveBrokerRequest) -> own_apis.ProveBrokerResponse:
    answer: own_apis.ProveBrokerResponse = await connection.send(request)
    if answer.error_code:
        raise KafkaError(ErrorCode(answer.error_code), answer.message)
    return answer


class Proving:
    """The other side of a connection proves itself."""

    def __init__(
        self,
        key: QuorumKey,
        entropy: Entropy,
        own_id: int,
        own_address: str,
        with_secret: WithSecret = with_secret,
    ) -> None:
        """``own_address``: where the others reach this node, by :func:`address_text`."""
        self._key = key
        self._with_secret = with_secret
        self._entropy = entropy
        self._own_id = own_id
        self._own_address = own_address
        self._secret = key.secret
        """The one of this exchange."""
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
            secret = self._secret = self._key.named(request.key_id) or self._key.secret
            proof = self._with_secret("broker proof", lambda: broker_proof(secret, Side.ACCEPTOR, exchange))
            return own_apis.ProveBrokerResponse(nonce=nonce, proof=proof)
        if self.is_proved or not self._with_secret(
            "is proof", lambda: is_proof(self._secret, Side.INITIATOR, exchange, request.proof)
        ):
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
