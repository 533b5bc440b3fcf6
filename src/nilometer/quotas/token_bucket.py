"""A token bucket: allows bursts, and then a rate (Kafka's ``TokenBucket``, KIP-599).

Invariant: the bucket has at most the tokens of all windows at the full rate. It may be overdrawn: what is
taken while tokens are left is taken as a whole, and then the next one has to wait.
"""

from __future__ import annotations

from nilometer.quotas.windowed_rate import THROTTLE_MS_MAX


class TokenBucket:
    __slots__ = ("_filled_ms", "_span_ms", "_tokens")

    def __init__(self, count: int, length_ms: int, rate: float, now_ms: int) -> None:
        """A full bucket for ``rate`` tokens per second over ``count`` windows of ``length_ms``."""
        self._span_ms = count * length_ms
        self._tokens = self._capacity(rate)
        self._filled_ms = now_ms

    def take(self, tokens: float, rate: float, now_ms: int) -> None:
        """Take ``tokens``; a negative number gives them back."""
        self._refill(rate, now_ms)
        self._tokens = min(self._capacity(rate), self._tokens - tokens)

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """Return the time (ms) until the bucket is no longer overdrawn, at most THROTTLE_MS_MAX; 0 if it is
        not."""
        self._refill(rate, now_ms)
        return 0 if self._tokens >= 0 else round(min(THROTTLE_MS_MAX, -self._tokens / rate * 1000))

    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether the bucket is full, as a new one."""
        self._refill(rate, now_ms)
        return self._tokens >= self._capacity(rate)

    def use(self, rate: float, now_ms: int) -> float:
        """Return the share of the tokens that is taken; above 1 the bucket is overdrawn."""
        self._refill(rate, now_ms)
        return 1 - self._tokens / self._capacity(rate)

    def _capacity(self, rate: float) -> float:
        return rate * self._span_ms / 1000

    def _refill(self, rate: float, now_ms: int) -> None:
        earned = rate * (now_ms - self._filled_ms) / 1000
        self._tokens = min(self._capacity(rate), self._tokens + earned)
        self._filled_ms = now_ms
