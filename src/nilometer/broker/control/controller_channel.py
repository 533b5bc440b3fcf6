"""How do requests reach the controller if that is another broker?

:class:`ControllerChannel` has the connections to it: one for this broker's own requests, and one for each
client whose requests it forwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nilometer.broker.control.broker_peers import BrokerPeers
from nilometer.broker.control.controller import in_turn
from nilometer.broker.control.decision_queue import Client, DecisionQueue
from nilometer.broker.control.metadata_log import MetadataLog
from nilometer.broker.request_context import RequestContext
from nilometer.broker.tasks import Tasks
from nilometer.client.network.connection import Connection
from nilometer.wire import own_apis as forward_request
from nilometer.wire.building import Api, Message
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import RequestHeader, encode_request, encode_response

REQUEST_TIMEOUT_MS = 10_000
CLIENTS_AT_ONCE = 16
"""So many clients have a request under way to the controller at once."""
PROMPT_S = 0.25
"""A request that has waited at the controller for this long lets one of another client be sent, too."""
WAITING_MAX = 240
"""So many requests at once let others be sent while they wait."""


class _ControllerConnection:
    """A connection to the controller, opened when it is needed."""

    def __init__(self, client_id: str, peers: BrokerPeers, metadata: MetadataLog) -> None:
        self._client_id = client_id
        self._peers = peers
        self._metadata = metadata
        self._connection: Connection | None = None
        self._connected_to = -1
        self._connecting = asyncio.Lock()

    async def get(self) -> Connection:
        """Return the connection, to the controller of now. Raises KafkaError."""
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

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _endpoint(self) -> tuple[int, str, int]:
        """Return the controller's id, host and port. Raises KafkaError (NOT_CONTROLLER) if none is known."""
        image = self._metadata.image
        broker = image.broker(image.controller_id)
        endpoint = broker.endpoint(self._peers.listener) if broker is not None else None
        if endpoint is None:
            raise KafkaError(ErrorCode.not_controller, "no controller is known")
        return image.controller_id, endpoint.host, endpoint.port


class ControllerChannel:
    """This broker's own requests have a connection for themselves: the controller answers those of one
    connection one after another. Each of the clients that wait for an answer has one, too: a user at an
    address, ``CLIENTS_AT_ONCE`` at most, and ``WAITING_MAX`` that wait for long. Requests of one client are
    sent one after another; clients take turns."""

    def __init__(self, broker_id: int, peers: BrokerPeers, metadata: MetadataLog, tasks: Tasks) -> None:
        client_id = f"forwarded-by-broker-{broker_id}"  # versions without proofs check it
        self._new_connection = partial(_ControllerConnection, client_id, peers, metadata)
        self._own = self._new_connection()
        self._used: dict[_ControllerConnection, None] = {}
        """Those that a client has at the moment."""
        self._unused: list[_ControllerConnection] = []
        """Those of no client, at most ``CLIENTS_AT_ONCE``; the one that was used last is used next."""
        self._tasks = tasks
        self._queue = DecisionQueue(CLIENTS_AT_ONCE, passed_on_max=WAITING_MAX)

    async def forward(
        self, header: RequestHeader, body: Message, context: RequestContext, *, timeout_ms: int | None = None
    ) -> bytes:
        """Forward a client's request; returns the frame of its response, without the length.

        ``timeout_ms``: how long to wait for the response, at least ``REQUEST_TIMEOUT_MS``. Raises KafkaError;
        the outcome of the request is then unknown. Cancelling the caller takes back what is not sent yet;
        what is sent keeps its turn until it is answered.
        """
        within_ms = max(timeout_ms or 0, REQUEST_TIMEOUT_MS)
        client = Client.of(context, header.client_id)

        async def send() -> bytes:
            loop = asyncio.get_running_loop()
            waits_long = loop.call_later(PROMPT_S, self._queue.pass_on, client)
            to_controller = self._take()
            try:
                return await _forward(await to_controller.get(), header, body, context, within_ms)
            finally:
                self._give_back(to_controller)
                waits_long.cancel()

        return await in_turn(self._tasks, self._queue, client, send, "requests sent on to the controller")

    async def call(self, api_key: int, make: Callable[[Api], Message]) -> Message:
        """Send this broker's own request, in the newest version that both brokers know, and return the
        response. ``make`` builds the request for that version. Raises KafkaError."""
        connection = await self._own.get()
        return await connection.request(api_key, make)

    def close(self) -> None:
        for connection in (self._own, *self._used, *self._unused):
            connection.close()

    def _take(self) -> _ControllerConnection:
        taken = self._unused.pop() if self._unused else self._new_connection()
        self._used[taken] = None
        return taken

    def _give_back(self, connection: _ControllerConnection) -> None:
        del self._used[connection]
        if len(self._unused) < CLIENTS_AT_ONCE:
            self._unused.append(connection)
        else:
            connection.close()


async def _forward(
    connection: Connection,
    header: RequestHeader,
    body: Message,
    context: RequestContext,
    answer_timeout_ms: int,
) -> bytes:
    if (
        forward_request.FORWARD_REQUEST not in connection.versions
    ):  # a version without proofs expects the bare request
        answer = await connection.send(body, timeout_ms=answer_timeout_ms)
        return encode_response(header.correlation_id, header.api_key, header.api_version, answer)[4:]
    request = forward_request.ForwardedRequest(
        principal_type=context.principal.type,
        principal_name=context.principal.name,
        client_address=context.client_address,
        client_port=context.client_port,
        listener=context.listener,
        security_protocol=context.security_protocol.value,
        request=encode_request(header.correlation_id, header.client_id, body)[4:],
    )
    response: forward_request.ForwardedResponse = await connection.send(request, timeout_ms=answer_timeout_ms)
    if response.error_code:
        raise KafkaError(ErrorCode(response.error_code), response.message)
    return response.response
