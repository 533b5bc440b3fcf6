"""Finds the coordinator of a group or transactional id, sends requests to it, looks it up after a move.

The callers evaluate the responses; they pass every error code to :meth:`Coordinator.check` or
:meth:`Coordinator.on_error`, so that a coordinator that moved is looked up again.

Invariant: JoinGroup waits at the broker, so it has its own connection, shared with SyncGroup and the
heartbeats; commits and look-ups use the broker's main connection and never wait after a JoinGroup.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nilometer.client.group.group_exchange import (
    CoordinatorType,
    find_coordinator_request,
    read_coordinators,
)
from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.client.network.connection_pool import MAIN_CHANNEL
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api
from nilometer.wire.errors import ErrorCode, KafkaError, UnsupportedVersion
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
            ApiKey.FIND_COORDINATOR, lambda api: find_coordinator_request(api, (self.key,), self.kind)
        )
        (found,) = read_coordinators(response)
        return await self._found(*found)

    async def _found(self, code: ErrorCode, message: str, node_id: int) -> int:
        """Return the broker id in a response about this coordinator, and keep it. Raises KafkaError."""
        if code != ErrorCode.none:
            raise KafkaError(code, message or f"coordinator of {self._name}")
        if node_id not in self._client.metadata.brokers:
            await self._client.refresh()
        self.node_id = node_id
        return node_id

    @staticmethod
    async def find_each(client: Client, coordinators: Sequence[Coordinator]) -> dict[str, KafkaError]:
        """Look up those of ``coordinators``, all of one kind, that are not known, in one attempt and with one
        request; return the error of each key that has no coordinator. Raises KafkaError."""
        unknown = [one for one in coordinators if one.node_id is None]
        errors: dict[str, KafkaError] = {}
        if not unknown:
            return errors

        def make(api: Api) -> Message:
            return find_coordinator_request(api, [one.key for one in unknown], unknown[0].kind)

        try:
            response = await client.send_to_any(ApiKey.FIND_COORDINATOR, make)
        except UnsupportedVersion:  # a broker before KIP-699
            for one in unknown:
                try:
                    await one.find()
                except KafkaError as error:
                    errors[one.key] = error
            return errors
        for one, found in zip(unknown, read_coordinators(response), strict=True):
            try:
                await one._found(*found)
            except KafkaError as error:
                errors[one.key] = error
        return errors

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
