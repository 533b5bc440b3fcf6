"""How fast the log cleaner may read and write: ``log.cleaner.io.max.bytes.per.second``, of all its work."""

from __future__ import annotations

BURST_MS = 300
"""What was not used in this time is not saved up."""
WAIT_MS_MAX = 60_000


class CleanerThrottle:
    def __init__(self, bytes_per_second: float, now_ms: int) -> None:
        self._bytes_per_ms = bytes_per_second / 1000
        self._paid_until_ms = float(now_ms)
        """What was read and written so far is paid for at this moment."""

    def wait_ms(self, byte_count: int, now_ms: int) -> float:
        """``byte_count`` was read or written; for how long nothing more may be."""
        start = max(self._paid_until_ms, now_ms - BURST_MS)
        self._paid_until_ms = start + byte_count / self._bytes_per_ms
        return min(max(self._paid_until_ms - now_ms, 0.0), WAIT_MS_MAX)
