"""Limits the bytes that all log cleaners together read and write
(``log.cleaner.io.max.bytes.per.second``)."""

from __future__ import annotations

BURST_MS = 300
"""Unused capacity is saved for at most this time."""
WAIT_MS_MAX = 60_000


class CleanerThrottle:
    def __init__(self, bytes_per_second: float, now_ms: int) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._paid_until_ms = float(now_ms)
        """When, at the full rate, the bytes read and written so far would be done."""

    def wait_ms(self, byte_count: int, now_ms: int) -> float:
        """Count ``byte_count`` bytes read or written; return how long (ms) the cleaner must wait."""
        start = max(self._paid_until_ms, now_ms - BURST_MS)
        self._paid_until_ms = start + byte_count / self._bytes_per_ms
        return min(max(self._paid_until_ms - now_ms, 0.0), WAIT_MS_MAX)
