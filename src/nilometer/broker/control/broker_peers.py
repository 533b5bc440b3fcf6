"""Connections to other brokers: each side proves to the other that it is a broker of this cluster.

A connection for occasional requests of transactions is kept open and shared.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.control.secret_keeper import SecretKeeper
from nilometer.broker.settings.broker_authentication import AUTHENTICATION, BrokerAuthentication
from nilometer.client.network.connection import REQUEST_TIMEOUT_MS, Connection, ConnectionLost
from nilometer.client.settings import NO_SECURITY, ClientSecurity
from nilometer.cluster.cluster_secret import NONCE_BYTES, ProofExchange, Side, broker_proof, is_proof
from nilometer.identifiers import BrokerId
from nilometer.runtime import Runtime
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode, KafkaError

logger = logging.getLogger("nilometer.broker.control")


class PeerNotProved(ConnectionLost):
    """The peer is not a broker of this cluster, or does not accept this broker. No request was sent."""


class PeerNotResponding(PeerNotProved):
    """The peer closed the connection instead of proving itself, as brokers of older versions do."""


class BrokerPeers:
    def __init__(
        self,
        broker_id: int,
        cluster_id: str,
        runtime: Runtime,
        secrets: SecretKeeper,
        *,
        listener: str,
        security: ClientSecurity = NO_SECURITY,
        authentication: BrokerAuthentication = BrokerAuthentication.SECRET,
    ) -> None:
        """``listener``: the name of the other brokers' listener that this broker connects to.
        ``security``: of these connections, TLS and this broker's user."""
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._runtime = runtime
        self._secrets = secrets
        self.listener = listener
        self._security = security
        self._authentication = authentication
        self._warned: dict[int, None] = {}

    async def connect(
        self,
        broker_id: int,
        host: str,
        port: int,
        *,
        client_id: str,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Connection:
        """Connect to broker ``broker_id``. When this returns, both sides have proved themselves, unless the
        peer is of a version that cannot, and such are accepted.

        Raises KafkaError: PeerNotProved, ConnectionLost.
        """

        async def prove(connection: Connection) -> None:
            await self._prove(broker_id, connection)

        try:
            return await Connection.open(
                self._runtime,
                host,
                port,
                client_id=client_id,
                request_timeout_ms=request_timeout_ms,
                before_use=prove,
                security=self._security,
            )
        except PeerNotResponding as error:
            if not self._authentication.accepts_unproved:
                raise
            self._warn(broker_id, error)
        return await Connection.open(
            self._runtime,
            host,
            port,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            security=self._security,
        )

    async def _prove(self, broker_id: int, connection: Connection) -> None:
        how = self._authentication
        nonce = self._runtime.entropy.bytes(NONCE_BYTES) if how.uses_secret else b""
        answer = await self._begin(broker_id, connection, nonce)
        has_accepted_user = not (answer.nonce or answer.proof)
        if has_accepted_user and how.uses_listener:
            return
        if has_accepted_user or not how.uses_secret:
            raise PeerNotProved(
                f"broker {broker_id} at {connection.host}:{connection.port} authenticates brokers otherwise "
                f"than this one, by {AUTHENTICATION}={how.value}"
            )
        exchange = ProofExchange(self._cluster_id, self._broker_id, broker_id, nonce, answer.nonce)
        secret = await self._secrets.numbered(answer.secret_number)
        if secret is None:
            self._refuse(
                f"{connection.host}:{connection.port} answers for broker {broker_id} with number "
                f"{answer.secret_number} of the cluster's secret, which this broker does not have",
                "Both brokers must use the same coordination store.",
            )
        with_secret = self._runtime.with_secret
        if not with_secret("is proof", lambda: is_proof(secret, Side.ACCEPTOR, exchange, answer.proof)):
            self._refuse(
                f"{connection.host}:{connection.port} is not broker {broker_id} of this cluster: "
                "its proof is wrong",
                f"Check the advertised.listeners of broker {broker_id}.",
            )
        own = with_secret("broker proof", lambda: broker_proof(secret, Side.INITIATOR, exchange))
        await self._ask(connection, wire.ProveBrokerRequest(proof=own))

    def _refuse(self, what: str, advice: str) -> NoReturn:
        logger.warning("%s. %s Nothing is sent to it.", what, advice)
        raise PeerNotProved(what)

    async def _begin(self, broker_id: int, connection: Connection, nonce: bytes) -> wire.ProveBrokerResponse:
        try:
            return await self._ask(
                connection,
                wire.ProveBrokerRequest(
                    cluster_id=self._cluster_id,
                    broker_id=self._broker_id,
                    expected_broker_id=broker_id,
                    secret_number=self._secrets.secrets.current.number if nonce else -1,
                    nonce=nonce,
                ),
            )
        except ConnectionLost as error:
            if isinstance(error, PeerNotProved):
                raise
            raise PeerNotResponding(
                f"broker {broker_id} at {connection.host}:{connection.port} did not authenticate "
                f"({error.message}); while it runs a version without authentication, both brokers need "
                f"{AUTHENTICATION}=accept"
            ) from None

    async def _ask(
        self, connection: Connection, request: wire.ProveBrokerRequest
    ) -> wire.ProveBrokerResponse:
        response: wire.ProveBrokerResponse = await connection.send(request)
        if response.error_code:
            peer = f"{connection.host}:{connection.port}"
            raise PeerNotProved(f"{peer} does not accept this broker: {response.message}")
        return response

    def _warn(self, broker_id: int, error: KafkaError) -> None:
        if broker_id not in self._warned:
            self._warned[broker_id] = None
            logger.warning("Continuing without a proof: %s", error.message)


PEER_REQUEST_TIMEOUT_MS = 30_000


class PeerConnections:
    def __init__(self, client_id: str, peers: BrokerPeers, metadata: MetadataLog) -> None:
        self._client_id = client_id
        self._peers = peers
        self._metadata = metadata
        self._connections: dict[int, Connection] = {}
        self._connecting: dict[int, asyncio.Lock] = {}

    async def to(self, broker_id: int) -> Connection:
        """Return the connection to a broker; open it if there is none.

        Raises KafkaError: BROKER_NOT_AVAILABLE if no such broker is registered and unfenced, ConnectionLost.
        """
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            host, port = self._endpoint(broker_id)
            known = self._connections.get(broker_id)
            if known is not None and not known.closed and (known.host, known.port) == (host, port):
                return known
            if known is not None:
                known.close()
            connection = self._connections[broker_id] = await self._peers.connect(
                broker_id, host, port, client_id=self._client_id, request_timeout_ms=PEER_REQUEST_TIMEOUT_MS
            )
            return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _endpoint(self, broker_id: int) -> tuple[str, int]:
        broker = self._metadata.image.broker(BrokerId(broker_id))
        endpoint = None if broker is None or broker.fenced else broker.endpoint(self._peers.listener)
        if endpoint is None:
            raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is not up")
        return endpoint.host, endpoint.port
