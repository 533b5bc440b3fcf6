"""How long log cleaners wait: for the limit of the bytes that all of them together read and write
(``log.cleaner.io.max.bytes.per.second``), and between slices, so that requests get CPU time."""

from __future__ import annotations

BURST_MS = 300
"""Unused capacity is saved for at most this time."""
WAIT_MS_MAX = 60_000
REST_SHARE = 0.5
"""How long a cleaner rests after a slice, as a share of the slice's duration."""
REST_MS_MAX = 250
"""A slice that took longer waited for the disk: it used no CPU time that requests would have needed."""


def rest_ms(took_ms: float) -> float:
    """Return how long (ms) a cleaner rests after a slice that took ``took_ms``."""
    return min(REST_SHARE * took_ms, REST_MS_MAX)


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
