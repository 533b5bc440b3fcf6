"""The way from this broker to the controller, when that is another broker: one connection, kept while it
lasts.

A request sent this way carries a client id that says so, and is never sent on by whoever receives it: a
broker that is not (or no longer) in office refuses it, and the sender looks again who is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.client.network.connection import Connection, ConnectionLost
from nilometer.runtime import Runtime
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

FORWARDED_PREFIX = "forwarded-by-broker-"
REQUEST_TIMEOUT_MS = 10_000


class ControllerChannel:
    def __init__(self, broker_id: int, runtime: Runtime, metadata: MetadataLog) -> None:
        self._client_id = f"{FORWARDED_PREFIX}{broker_id}"
        self._runtime = runtime
        self._metadata = metadata
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()

    async def send(self, request: Message, *, timeout_ms: int | None = None) -> Message:
        """A request whose type fixes its version. Raises KafkaError; what came of it is then not known.

        ``timeout_ms``: how long the response is waited for, if that is longer than usual.
        """
        connection = await self._connect()
        return await connection.send(request, timeout_ms=max(timeout_ms or 0, REQUEST_TIMEOUT_MS))

    async def call(self, api_key: int, make: Callable[[Api], Message]) -> Message:
        """A request in the newest version that both brokers speak. Raises KafkaError."""
        connection = await self._connect()
        return await connection.request(api_key, make)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _connect(self) -> Connection:
        async with self._connecting:
            host, port = self._endpoint()
            connection = self._connection
            if (
                connection is not None
                and not connection.closed
                and (connection.host, connection.port) == (host, port)
            ):
                return connection
            if connection is not None:
                connection.close()
            self._connection = await Connection.open(
                self._runtime, host, port, client_id=self._client_id, request_timeout_ms=REQUEST_TIMEOUT_MS
            )
            return self._connection

    def _endpoint(self) -> tuple[str, int]:
        image = self._metadata.image
        broker = image.broker(image.controller_id)
        endpoint = broker.endpoint("PLAINTEXT") if broker is not None else None
        if endpoint is None:
            raise KafkaError(ErrorCode.not_controller, "no controller is known")
        return endpoint.host, endpoint.port


__all__ = ["FORWARDED_PREFIX", "ConnectionLost", "ControllerChannel"]
