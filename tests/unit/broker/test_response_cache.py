"""Encoded responses are sent again while the state is the same, and in bounded memory."""

from __future__ import annotations

import pytest

from nilometer.broker.api import metadata
from nilometer.broker.api.metadata import CachedResponse, ResponseCache
from nilometer.identifiers import BrokerId

LEADERS = frozenset({BrokerId(2)})


def response(content: bytes, correlation_id: int = 1) -> CachedResponse:
    body = correlation_id.to_bytes(4, "big", signed=True) + content
    return CachedResponse(len(body).to_bytes(4, "big") + body, LEADERS)


def test_a_response_is_found_in_its_state_only_and_gets_each_correlation_id() -> None:
    cache = ResponseCache()
    cache.put(7, "request", response(b"content"))
    found = cache.find(7, "request")
    assert found is not None
    assert found.leaders == LEADERS
    assert found.to(-5) == response(b"content", -5).frame
    assert cache.find(7, "another request") is None
    assert cache.find(8, "request") is None
    cache.put(8, "another request", response(b""))
    assert cache.find(8, "request") is None, "those of the earlier state are forgotten"
    assert cache.find(7, "request") is None


def test_a_request_without_a_key_is_not_kept() -> None:
    cache = ResponseCache()
    cache.put(7, None, response(b"content"))
    assert cache.find(7, None) is None


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "ENTRIES_MAX", 3)
    monkeypatch.setattr(metadata, "BYTES_MAX", 100)
    cache = ResponseCache()

    def kept(*requests: int) -> list[int]:
        return [request for request in requests if cache.find(7, request) is not None]

    for request in range(4):
        cache.put(7, request, response(b""))
        cache.put(7, request, response(b"put twice, counted once: " + bytes(50)))
    assert kept(0, 1, 2, 3) == [3]
    cache.put(7, 4, response(bytes(100)))
    assert kept(3, 4) == [3], "a response larger than the cache is not kept, and removes no other"
    cache.put(7, 5, response(bytes(80)))
    assert kept(3, 4, 5) == [3, 5]
    cache.put(7, 6, response(bytes(5)))
    assert kept(3, 4, 5, 6) == [6]
