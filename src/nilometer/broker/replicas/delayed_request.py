"""Requests that wait for some of their partitions: answered when the last one has decided, or at the timeout.

A partition holds a :class:`PartitionWait` for its part and releases it when it has decided. The request's
handler creates and reads the outcome of each partition; nothing here is polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from nilometer.wire.errors import ErrorCode


class PartitionOutcome(Protocol):
    """The outcome for one partition."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None: ...


class PartitionWait:
    """One partition's part of a waiting request."""

    __slots__ = ("_request", "done", "outcome")

    def __init__(self, request: DelayedRequest, outcome: PartitionOutcome) -> None:
        self._request = request
        self.outcome = outcome
        self.done = False

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        """The partition has decided. Later decisions are ignored."""
        if self.done:
            return
        self.done = True
        if error is not ErrorCode.none:
            self.outcome.fail(error)
        self._request.one_released()


class DelayedRequest:
    """A request with at least one partition still waiting."""

    __slots__ = ("_finish", "_timer", "_unreleased", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._waits: list[PartitionWait] = []
        self._unreleased = 0
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, outcome: PartitionOutcome) -> PartitionWait:
        wait = PartitionWait(self, outcome)
        self._waits.append(wait)
        self._unreleased += 1
        return wait

    def start_timer(self, timeout_ms: int) -> None:
        """From now on the request is answered after ``timeout_ms`` at the latest."""
        if self._unreleased:
            self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._on_timeout)

    @property
    def is_waiting(self) -> bool:
        return self._unreleased > 0

    def one_released(self) -> None:
        self._unreleased -= 1
        if self._unreleased == 0:
            if self._timer is not None:
                self._timer.cancel()
            finish = self._finish
            self.close()
            if finish is not None:
                finish()

    def close(self) -> None:
        """Send the answer and release all waits."""
        self._finish = None
        self._waits = []

    def _on_timeout(self) -> None:
        self._timer = None
        _release_all(self._waits, ErrorCode.request_timed_out)


def _release_all(waits: Sequence[PartitionWait], error: ErrorCode) -> None:
    for wait in waits:
        wait.release(error)
