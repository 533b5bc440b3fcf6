"""How the use of a quota is measured: a rate over a sliding time (Kafka's ``Rate``, KIP-13), and a token
bucket, which allows bursts (Kafka's ``TokenBucket``, KIP-599).
"""

from __future__ import annotations

from collections import deque

# A rate over a sliding time: the sum of the last windows by their length (Kafka's ``Rate``, KIP-13).
#
# A window begins with the first value after the end of the one before it, so there may be gaps. It is dropped
# when its last value is older than all windows together. The rate is the sum of the values divided by the
# time since the oldest window began; but this time is at least that of all full windows and the begun one, so
# that a client that has just connected is not throttled for its first request.
#
# Invariants: windows are in the order of time, and none that is dropped is counted again.

THROTTLE_MS_MAX = 2**31 - 1
"""The field of a response that names a throttle time has four bytes."""


class _Window:
    __slots__ = ("began_ms", "last_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.last_ms = now_ms
        self.value = 0.0


class WindowedRate:
    __slots__ = ("_count", "_length_ms", "_windows")

    def __init__(self, count: int, length_ms: int) -> None:
        """``count`` windows of ``length_ms`` each, the begun one included."""
        self._count = count
        self._length_ms = length_ms
        self._windows: deque[_Window] = deque()

    def record(self, value: float, now_ms: int) -> None:
        """Count ``value``; a negative one takes back what was recorded."""
        windows = self._windows
        if not windows or now_ms - windows[-1].began_ms >= self._length_ms:
            windows.append(_Window(now_ms))
        window = windows[-1]
        window.value += value
        window.last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        time_ms = self._time_ms(now_ms)
        return sum(window.value for window in self._windows) * 1000 / time_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return after which time (ms) without another value the rate is ``limit``; 0 if it is below.

        At most THROTTLE_MS_MAX.
        """
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round(min(THROTTLE_MS_MAX, (rate - limit) / limit * self._time_ms(now_ms)))

    def is_idle(self, rate: float, now_ms: int) -> bool:
        """Whether no value counts any more, as in a new object; whatever the ``rate`` allowed."""
        self._drop_old(now_ms)
        return not self._windows

    def use(self, rate: float, now_ms: int) -> float:
        """Return the rate as a share of the one that is allowed."""
        return self.per_second(now_ms) / rate

    def _time_ms(self, now_ms: int) -> int:
        self._drop_old(now_ms)
        elapsed_ms = now_ms - self._windows[0].began_ms if self._windows else 0
        missing = self._count - 1 - elapsed_ms // self._length_ms
        return max(1, elapsed_ms + max(0, missing) * self._length_ms)

    def _drop_old(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._count * self._length_ms
        while self._windows and self._windows[0].last_ms <= oldest_ms:
            self._windows.popleft()


# A token bucket: allows bursts, and then a rate (Kafka's ``TokenBucket``, KIP-599).
#
# Invariant: the bucket has at most the tokens of all windows at the full rate. It may be overdrawn: what is
# taken while tokens are left is taken as a whole, and then the next one has to wait.


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
