"""Requests of an administrator: to any broker or to all, repeated while they fail with a retriable error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.wire.building import Message
from nilometer.wire.errors import ErrorCode, KafkaError

T = TypeVar("T")


class AdminRequests:
    def __init__(self, client: Client, timeout_ms: int) -> None:
        """``timeout_ms``: how long a request is repeated when it fails with a retriable error."""
        self._client = client
        self._timeout_ms = timeout_ms

    async def _any(self, api_key: int, make: MakeRequest) -> Message:
        return await self._client.retry(lambda: self._client.send_to_any(api_key, make), self._timeout_ms)

    async def _all(
        self, ask: Callable[[int], Awaitable[Sequence[T]]], broker_ids: Sequence[int] | None = None
    ) -> list[T]:
        """Return what ``ask`` returns of each of ``broker_ids``, by default of all brokers."""

        async def ask_all() -> list[T]:
            asked = sorted(self._client.metadata.brokers) if broker_ids is None else broker_ids
            found = await asyncio.gather(*(ask(broker_id) for broker_id in asked))
            return [one for several in found for one in several]

        return await self._client.retry(ask_all, self._timeout_ms)


def raise_error(code: ErrorCode, message: str | None) -> None:
    """Raise KafkaError unless ``code`` is that of no error."""
    if code != ErrorCode.none:
        raise KafkaError(code, message or "")
