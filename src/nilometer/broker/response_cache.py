"""Encoded responses that are sent again for as long as the state that they were made of stays the same.

Many clients send the same request at once, above all when a leader has died and they look for the next one.
The response to each would take milliseconds of the event loop if it names thousands of partitions.

Different requests are few; a client that sends many of them only empties the cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Set
from typing import NamedTuple

from nilometer.identifiers import BrokerId

ENTRIES_MAX = 256
BYTES_MAX = 4 * 1024 * 1024
_CORRELATION_ID_AT, _CORRELATION_ID_END = 4, 8
"""In a response frame with its length."""


class CachedResponse(NamedTuple):
    frame: bytes
    leaders: Set[BrokerId]
    """The brokers to confirm before it is sent again; none for a response about all topics."""

    def to(self, correlation_id: int) -> bytes:
        """Return the frame as the response to the request with this correlation id."""
        frame = self.frame
        return b"".join(
            (
                frame[:_CORRELATION_ID_AT],
                correlation_id.to_bytes(4, "big", signed=True),
                frame[_CORRELATION_ID_END:],
            )
        )


class ResponseCache:
    def __init__(self) -> None:
        self._state: Hashable = None
        self._responses: dict[Hashable, CachedResponse] = {}
        self._bytes = 0

    def find(self, state: Hashable, request: Hashable) -> CachedResponse | None:
        """Return the response that was made for such a request in this state."""
        return self._responses.get(request) if state == self._state else None

    def put(self, state: Hashable, request: Hashable, response: CachedResponse) -> None:
        """Keep a response, and forget those of another state. One is not kept if it is larger than the
        cache, or if ``request`` is None."""
        size = len(response.frame)
        if size > BYTES_MAX or request is None or self.find(state, request) is not None:
            return
        if state != self._state or len(self._responses) >= ENTRIES_MAX or self._bytes + size > BYTES_MAX:
            self._state = state
            self._responses.clear()
            self._bytes = 0
        self._responses[request] = response
        self._bytes += size
