"""The quota of one request for partitions that are created or deleted (KIP-599), kept by the controller."""

from __future__ import annotations

from collections.abc import Callable

from nilometer.cluster.controller.decision import Refusal
from nilometer.quotas.rates import TokenBucket
from nilometer.wire.errors import ErrorCode

EXCEEDED = "The throttling quota has been exceeded."


class MutationQuota:
    """The quota of one request.

    A decision may be made again, if its entry could not be appended: only the last one counts.
    """

    def __init__(
        self, bucket: TokenBucket | None, rate: float, now_ms: Callable[[], int], *, strict: bool
    ) -> None:
        """``bucket``: of all requests that share the rate; None if there is no quota."""
        self._bucket = bucket
        self._rate = rate
        self._now_ms = now_ms
        self._strict = strict
        self._taken = 0
        self._until_ms = 0

    def begin(self) -> None:
        """Take back what an earlier decision of the same request took."""
        if self._bucket is not None and self._taken:
            self._bucket.take(-self._taken, self._rate, self._now_ms())
        self._taken = 0
        self._until_ms = 0

    def take(self, partitions: int) -> None:
        """Count ``partitions`` that are created or deleted. Raises Refusal (THROTTLING_QUOTA_EXCEEDED)."""
        if self._bucket is None:
            return
        now_ms = self._now_ms()
        if self._strict and (wait_ms := self._bucket.throttle_ms(self._rate, now_ms)):
            self._until_ms = now_ms + wait_ms
            raise Refusal(ErrorCode.throttling_quota_exceeded, EXCEEDED)
        self._bucket.take(partitions, self._rate, now_ms)
        self._taken += partitions
        if not self._strict:
            self._until_ms = now_ms + self._bucket.throttle_ms(self._rate, now_ms)

    @property
    def throttle_ms(self) -> int:
        """How long (ms) the client has to wait from now on."""
        return 0 if self._bucket is None else max(0, self._until_ms - self._now_ms())


UNLIMITED = MutationQuota(None, 0.0, lambda: 0, strict=True)
