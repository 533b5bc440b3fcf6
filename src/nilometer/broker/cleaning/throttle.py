"""How long log cleaners wait: for the limit of the bytes that all of them together read and write
(``log.cleaner.io.max.bytes.per.second``), and between slices, so that requests get CPU time."""

from __future__ import annotations

BURST_MS = 300
"""Unused capacity is saved for at most this time."""
WAIT_MS_MAX = 60_000
REST_SHARE_MIN, REST_SHARE_MAX = 0.1, 0.5
"""How long a cleaner rests after a slice, as a share of the slice's duration."""
IDLE_LAG_MS = 0.25
"""An event loop that has nothing else to do notices the end of a slice within this time."""
REST_PER_LAG = 4.0
"""How long it rests in addition for each millisecond that the event loop noticed it later."""
REST_MS_MAX = 250
"""A slice that took longer waited for the disk: it used no CPU time that requests would have needed."""


def rest_ms(took_ms: float, lag_ms: float) -> float:
    """Return how long (ms) a cleaner rests after a slice that took ``took_ms``, and whose end the event loop
    noticed ``lag_ms`` later."""
    wanted = REST_SHARE_MIN * took_ms + REST_PER_LAG * max(lag_ms - IDLE_LAG_MS, 0)
    return min(wanted, REST_SHARE_MAX * took_ms, REST_MS_MAX)


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
