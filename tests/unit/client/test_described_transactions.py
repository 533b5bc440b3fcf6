"""What the coordinator's description of a transactional id says of its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api.spec import Request
from nilometer.broker.request_context import RequestContext
from nilometer.client.admin.transaction_admin import TransactionAdmin, TransactionDescription
from nilometer.client.group import coordinator
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.messages import Message, RequestHeader, api, decode_response

KEY = ApiKey.DESCRIBE_TRANSACTIONS


def response(start_ms: int) -> Message:
    """A response as the client decodes it; ``start_ms`` as in the protocol, -1 without a transaction."""
    codec = api(KEY, 0)
    state = codec.make(
        "TransactionState",
        transactional_id="x",
        transaction_state="Empty" if start_ms < 0 else "Ongoing",
        transaction_timeout_ms=60_000,
        transaction_start_time=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=start_ms),
        producer_id=9,
        producer_epoch=0,
        topics=(),
    )
    header = RequestHeader(KEY, 0, 1, "test", 0)
    request = Request(
        header, codec.request(transactional_ids=("x",)), codec, cast(Any, None), RequestContext()
    )
    frame = b"".join(map(bytes, cast(Any, request.respond(transaction_states=(state,)))))
    return decode_response(KEY, 0, frame[4:])[1]


@pytest.mark.parametrize(("sent", "start_ms"), [(-1, None), (1, 1), (1_800_000_000_123, 1_800_000_000_123)])
def test_an_id_without_a_transaction_has_no_start(
    sent: int, start_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def retry(ask: Callable[[], Awaitable[object]], timeout_ms: int) -> object:
        return await ask()

    async def ask(*_: object) -> Message:
        return response(sent)

    async def find(_: object) -> int:
        return 1

    monkeypatch.setattr(coordinator.Coordinator, "ask", ask)
    monkeypatch.setattr(coordinator.Coordinator, "find", find)
    admin = TransactionAdmin(cast(Any, SimpleNamespace(retry=retry)), 1_000)
    described = asyncio.run(admin.describe(["x"]))["x"]
    assert isinstance(described, TransactionDescription)
    assert (described.producer_id, described.coordinator_id, described.start_ms) == (9, 1, start_ms)
