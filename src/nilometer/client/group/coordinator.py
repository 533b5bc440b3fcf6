"""Finds the coordinator of a group or transactional id, sends requests to it, looks it up after a move.

The callers evaluate the responses; they pass every error code to :meth:`Coordinator.check` or
:meth:`Coordinator.on_error`, so that a coordinator that moved is looked up again.

Invariant: JoinGroup waits at the broker, so it has its own connection, shared with SyncGroup and the
heartbeats; commits and look-ups use the broker's main connection and never wait after a JoinGroup.
"""

from __future__ import annotations

import logging

from nilometer.client.group.group_exchange import (
    CoordinatorType,
    find_coordinator_request,
    read_coordinator,
)
from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.client.network.connection_pool import MAIN_CHANNEL
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Message

logger = logging.getLogger(__name__)

GROUP_CHANNEL = "group"

LEAVE_TIMEOUT_MS = 5_000
"""How long a leave request is retried. If all fail, the member is removed after its session timeout."""

LOST = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
    }
)
"""After these errors the coordinator is looked up again."""


class Coordinator:
    def __init__(self, client: Client, key: str, kind: CoordinatorType = CoordinatorType.GROUP) -> None:
        """``key`` is a group id or a transactional id, depending on ``kind``."""
        self.key = key
        self.kind = kind
        self.node_id: int | None = None
        self._client = client

    async def find(self) -> int:
        """Return the coordinator's broker id; if unknown, look it up, in one attempt. Raises KafkaError."""
        if self.node_id is not None:
            return self.node_id
        response = await self._client.send_to_any(
            ApiKey.FIND_COORDINATOR, lambda api: find_coordinator_request(api, self.key, self.kind)
        )
        code, message, node_id = read_coordinator(response)
        if code != ErrorCode.none:
            raise KafkaError(code, message or f"coordinator of {self._name}")
        if node_id not in self._client.metadata.brokers:
            await self._client.refresh()
        self.node_id = node_id
        return node_id

    async def ask(
        self,
        api_key: int,
        make: MakeRequest,
        *,
        channel: str = MAIN_CHANNEL,
        at_most: int | None = None,
        timeout_ms: int | None = None,
    ) -> Message:
        """Send a request to the coordinator once and return the response. Raises KafkaError.

        If the connection failed, the coordinator is looked up again before the next request.
        """
        node_id = await self.find()
        try:
            connection = await self._client.connections.get(node_id, channel)
            return await connection.request(api_key, make, at_most=at_most, timeout_ms=timeout_ms)
        except KafkaError as error:
            self.on_error(error.code, node_id)
            raise

    def check(self, code: ErrorCode, what: str) -> None:
        """Raise KafkaError if ``code`` is an error; ``what`` is the error's text."""
        if code != ErrorCode.none:
            self.on_error(code, self.node_id)
            raise KafkaError(code, f"{self._name}: {what}")

    def on_error(self, code: ErrorCode, node_id: int | None) -> None:
        """Forget the coordinator if ``code``, from broker ``node_id``, is in ``LOST``."""
        if code in LOST and node_id == self.node_id:
            self.lose(code.name)

    def lose(self, reason: str) -> None:
        """Forget the coordinator: it is looked up again before the next request. ``reason`` is logged."""
        if self.node_id is not None:
            logger.info("Broker %d is no longer the coordinator of %s (%s)", self.node_id, self._name, reason)
            self.node_id = None

    async def send_leave(self, api_key: int, make: MakeRequest) -> None:
        """Send a leave request, with retries; a failure is logged: the session timeout removes the member."""

        async def tell() -> None:
            response = await self.ask(api_key, make, timeout_ms=LEAVE_TIMEOUT_MS)
            self.check(response.error_code, "leaving")

        try:
            await self._client.retry(tell, LEAVE_TIMEOUT_MS)
        except KafkaError as error:
            logger.info("%s: got no response to the leave request: %s", self._name, error)

    @property
    def _name(self) -> str:
        noun = "group" if self.kind is CoordinatorType.GROUP else "transactional id"
        return f"{noun} {self.key}"
