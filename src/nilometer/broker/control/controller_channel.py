"""The connection from this broker to the controller, when that is another broker.

This broker's own requests are sent as they are; a client's request is forwarded with the client's context.
The receiver never forwards it again: if it is not (or no longer) the controller it responds NOT_CONTROLLER,
and the sender locates the controller again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.wire import own_apis as wire
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message, RequestHeader, encode_request, encode_response

REQUEST_TIMEOUT_MS = 10_000


class ControllerChannel:
    def __init__(self, broker_id: int, peers: BrokerPeers, metadata: MetadataLog) -> None:
        self._client_id = f"forwarded-by-broker-{broker_id}"  # versions without proofs check it
        self._peers = peers
        self._metadata = metadata
        self._connection: Connection | None = None
        self._connected_to = -1
        self._connecting = asyncio.Lock()

    async def forward(
        self, header: RequestHeader, body: Message, context: RequestContext, *, timeout_ms: int | None = None
    ) -> bytes:
        """Forward a client's request; returns the frame of its response, without the length.

        ``timeout_ms``: how long to wait for the response, at least ``REQUEST_TIMEOUT_MS``. Raises KafkaError;
        the outcome of the request is then unknown.
        """
        answer_timeout_ms = max(timeout_ms or 0, REQUEST_TIMEOUT_MS)
        connection = await self._connect()
        if (
            wire.FORWARD_REQUEST not in connection.versions
        ):  # a version without proofs expects the bare request
            answer = await connection.send(body, timeout_ms=answer_timeout_ms)
            return encode_response(header.correlation_id, header.api_key, header.api_version, answer)[4:]
        request = wire.ForwardedRequest(
            principal_type=context.principal.type,
            principal_name=context.principal.name,
            client_address=context.client_address,
            client_port=context.client_port,
            listener=context.listener,
            security_protocol=context.security_protocol.value,
            request=encode_request(header.correlation_id, header.client_id, body)[4:],
        )
        response: wire.ForwardedResponse = await connection.send(request, timeout_ms=answer_timeout_ms)
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), response.message)
        return response.response

    async def call(self, api_key: int, make: Callable[[Api], Message]) -> Message:
        """Send this broker's own request, in the newest version that both brokers know, and return the
        response. ``make`` builds the request for that version. Raises KafkaError."""
        connection = await self._connect()
        return await connection.request(api_key, make)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> Connection:
        async with self._connecting:
            broker_id, host, port = self._endpoint()
            connection = self._connection
            if (
                connection is not None
                and not connection.closed
                and (self._connected_to, connection.host, connection.port) == (broker_id, host, port)
            ):
                return connection
            if connection is not None:
                connection.close()
            self._connection = await self._peers.connect(
                broker_id, host, port, client_id=self._client_id, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            self._connected_to = broker_id
            return self._connection

    def _endpoint(self) -> tuple[int, str, int]:
        """Return the controller's id, host and port. Raises KafkaError (NOT_CONTROLLER) if none is known."""
        image = self._metadata.image
        broker = image.broker(image.controller_id)
        endpoint = broker.endpoint(self._peers.listener) if broker is not None else None
        if endpoint is None:
            raise KafkaError(ErrorCode.not_controller, "no controller is known")
        return image.controller_id, endpoint.host, endpoint.port


__all__ = ["ConnectionLost", "ControllerChannel"]
