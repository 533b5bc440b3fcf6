"""Produce and Fetch requests that are refused as a whole count for the quota of time; their clients wait."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nilometer.broker.api import fetch, produce
from nilometer.broker.api.spec import Request
from nilometer.broker.connection import Connection
from nilometer.broker.request_context import ANONYMOUS_CONTEXT
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.fetch import decode_fetch_body
from nilometer.wire.produce import ProduceBody, ProducedRecords, ProducedToTopic
from support.brokers.fake_rights import rights_of

BEGAN_US, SPENT_US, THROTTLE_MS = 1_000, 250, 77


class Quotas:
    def __init__(self, *, limits_clients: bool) -> None:
        self.limits_clients = limits_clients
        self.counted: list[tuple[str | None, int]] = []

    def on_request(self, _context: object, client_id: str | None, spent_us: int) -> int:
        self.counted.append((client_id, spent_us))
        return THROTTLE_MS


def parts(quotas: Quotas) -> Any:
    def begin(*_: object, **__: object) -> None:
        raise KafkaError(ErrorCode.fetch_session_id_not_found)

    clock = SimpleNamespace(monotonic_ms=lambda: 1, monotonic_us=lambda: BEGAN_US + SPENT_US)
    return SimpleNamespace(
        client_quotas=quotas,
        runtime=SimpleNamespace(clock=clock),
        metadata=SimpleNamespace(image=SimpleNamespace(topic=lambda _: None)),
        rights=rights_of(),
        fetch_sessions=SimpleNamespace(begin=begin),
    )


def request(key: ApiKey, version: int, body: Any, muted: list[int], broker_id: int = -1) -> Request:
    return Request(
        messages.RequestHeader(int(key), version, 1, "client", 0),
        body,
        messages.api(key, version),
        cast(Connection, SimpleNamespace(mute=muted.append)),
        replace(ANONYMOUS_CONTEXT, broker_id=broker_id),
        BEGAN_US,
    )


def fetch_body(version: int) -> Any:
    frame = messages.encode_request(
        1,
        "client",
        messages.api(ApiKey.FETCH, version).request(
            max_wait=timedelta(0), min_bytes=1, max_bytes=1, session_id=5, session_epoch=6, topics=()
        ),
    )
    data = frame[4:]
    return decode_fetch_body(version, memoryview(data), messages.decode_request_header(data).size)


@pytest.mark.parametrize("version", [7, 11, 12])
@pytest.mark.parametrize("limits", [True, False])
def test_a_fetch_that_is_refused(version: int, limits: bool) -> None:
    muted: list[int] = []
    quotas = Quotas(limits_clients=limits)
    reply = fetch.handle(parts(quotas), request(ApiKey.FETCH, version, fetch_body(version), muted))
    assert reply is not None and not isinstance(reply, asyncio.Future)
    answer = messages.decode_response(ApiKey.FETCH, version, b"".join(reply)[4:])[1]
    assert answer.error_code is ErrorCode.fetch_session_id_not_found
    assert answer.throttle_time.total_seconds() * 1000 == (THROTTLE_MS if limits else 0)
    assert quotas.counted == ([("client", SPENT_US)] if limits else [])
    assert muted == ([THROTTLE_MS] if limits else [])


@pytest.mark.parametrize("limits", [True, False])
def test_a_produce_request_that_is_refused(monkeypatch: pytest.MonkeyPatch, limits: bool) -> None:
    monkeypatch.setattr(produce, "is_transaction_denied", lambda *_: True)
    muted: list[int] = []
    quotas = Quotas(limits_clients=limits)
    body = ProduceBody("id", -1, 1_000, [ProducedToTopic("t", [ProducedRecords(0, None)])])
    reply = produce.handle(parts(quotas), request(ApiKey.PRODUCE, 11, body, muted))
    assert reply is not None and not isinstance(reply, asyncio.Future)
    answer = messages.decode_response(ApiKey.PRODUCE, 11, b"".join(reply)[4:])[1]
    [told] = answer.responses
    assert told.partition_responses[0].error_code is ErrorCode.transactional_id_authorization_failed
    assert answer.throttle_time.total_seconds() * 1000 == (THROTTLE_MS if limits else 0)
    assert quotas.counted == ([("client", SPENT_US)] if limits else [])
    assert muted == ([THROTTLE_MS] if limits else [])


def test_what_a_broker_sends_is_not_counted() -> None:
    quotas = Quotas(limits_clients=True)
    fetch.handle(parts(quotas), request(ApiKey.FETCH, 12, fetch_body(12), [], broker_id=2))
    assert quotas.counted == []
