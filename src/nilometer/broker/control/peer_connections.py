"""One connection to each other broker, for occasional requests of transactions; kept open and shared.

Both sides of a connection have proved to be brokers of this cluster.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.client.network.connection import Connection
from nilometer.identifiers import BrokerId
from nilometer.wire.errors import ErrorCode, KafkaError

REQUEST_TIMEOUT_MS = 30_000


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
                broker_id, host, port, client_id=self._client_id, request_timeout_ms=REQUEST_TIMEOUT_MS
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
