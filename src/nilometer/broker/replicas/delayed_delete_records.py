"""DeleteRecords requests that wait until every live replica has deleted the records.

A partition is done when its low watermark (the lowest log start offset of the leader and of all replicas with
live brokers) has reached the requested offset. A follower's fetch carries its log start offset; replicas of
fenced brokers are not waited for. The outcome is NOT_LEADER_OR_FOLLOWER if this broker no longer leads, and
REQUEST_TIMED_OUT for partitions that are not done when the request's timeout expires.
"""

from __future__ import annotations

import msgspec

from nilometer.broker.replicas.delayed_request import DelayedRequest, PartitionWait
from nilometer.wire.errors import ErrorCode

NO_LOW_WATERMARK = -1


class DeleteOutcome(msgspec.Struct):
    """The outcome for one partition."""

    index: int
    error: ErrorCode = ErrorCode.none
    low_watermark: int = NO_LOW_WATERMARK

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        self.error = error
        if error is not ErrorCode.request_timed_out:  # that response has the low watermark reached so far
            self.low_watermark = NO_LOW_WATERMARK


class DeletionWaits:
    """The requests that wait for the low watermark of one partition."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[tuple[int, DeleteOutcome, PartitionWait]] = []

    def __bool__(self) -> bool:
        return bool(self._waits)

    def hold(self, required_offset: int, outcome: DeleteOutcome, request: DelayedRequest) -> None:
        """Make ``request`` wait until the low watermark, which is lower now, reaches ``required_offset``."""
        self._waits.append((required_offset, outcome, request.wait_for(outcome)))

    def on_low_watermark(self, low_watermark: int) -> None:
        waits, self._waits = self._waits, []
        for required_offset, outcome, wait in waits:
            if wait.done:
                continue
            outcome.low_watermark = low_watermark
            if required_offset <= low_watermark:
                wait.release()
            else:
                self._waits.append((required_offset, outcome, wait))

    def fail_all(self, error: ErrorCode) -> None:
        waits, self._waits = self._waits, []
        for _, _, wait in waits:
            wait.release(error)
