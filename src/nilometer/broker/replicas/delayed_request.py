"""Requests that wait for some of their partitions: the response is sent when the last one has its outcome, or
at the timeout.

A partition keeps a :class:`PartitionWait` for its part of the request, and releases it with the outcome. The
request's handler creates and reads the outcome objects; nothing here is polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from nilometer.wire.errors import NONE, ErrorCode


class PartitionOutcome(Protocol):
    """The outcome for one partition: a success until ``fail`` is called."""

    def fail(self, error: ErrorCode, message: str | None = None) -> None: ...


class Holder(Protocol):
    """A partition that keeps waits until its high watermark reaches their offsets."""

    def abandon(self, ticket: int, offset: int) -> None: ...


class MayWait(Protocol):
    """A request that can be made to wait for a partition."""

    def wait_for(self, outcome: PartitionOutcome) -> PartitionWait:
        """Make the request wait for a partition; the wait's end may set an error in ``outcome``."""
        ...


class PartitionWait:
    """One partition's part of a waiting request."""

    __slots__ = ("_request", "done", "outcome", "ticket")

    def __init__(self, request: DelayedRequest, outcome: PartitionOutcome) -> None:
        self._request = request
        self.outcome = outcome
        self.done = False
        self.ticket: tuple[Holder, int, int] | None = None
        """The partition that keeps the wait, its ticket there, and the offset that the high watermark must
        reach. None: nothing is to be undone at the timeout."""

    def release(self, error: ErrorCode = NONE) -> None:
        """End the wait; an ``error`` becomes the outcome. Ignored if the wait has ended already."""
        if self.done:
            return
        self.done = True
        if error is not NONE:
            self.outcome.fail(error)
        self._request.one_released()

    def time_out(self) -> None:
        """End the wait with REQUEST_TIMED_OUT, unless it has ended already."""
        if self.done:
            return
        if self.ticket is not None:
            holder, ticket, offset = self.ticket
            holder.abandon(ticket, offset)
        self.release(ErrorCode.request_timed_out)


class DelayedRequest:
    """The waits of one request for its partitions.

    A wait may end while the request is still being processed: the append to its next partition may take a log
    directory offline. So nothing is finished before :meth:`start_timer`.
    """

    __slots__ = ("_finish", "_is_complete", "_timer", "_unreleased", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        """``finish`` is called once, when the last wait has ended; it sends the response."""
        self._finish: Callable[[], None] | None = finish
        self._waits: list[PartitionWait] = []
        self._unreleased = 0
        self._is_complete = False
        """Whether all of the request's waits have begun."""
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, outcome: PartitionOutcome) -> PartitionWait:
        """Make the request wait for a partition; the wait's end may set an error in ``outcome``."""
        wait = PartitionWait(self, outcome)
        self._waits.append(wait)
        self._unreleased += 1
        return wait

    def start_timer(self, timeout_ms: int) -> None:
        """End the waits that remain after ``timeout_ms``, with REQUEST_TIMED_OUT. No more waits may begin."""
        self._is_complete = True
        if self._unreleased:
            self._timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._on_timeout)

    @property
    def is_waiting(self) -> bool:
        return self._unreleased > 0

    def one_released(self) -> None:
        self._unreleased -= 1
        if self._unreleased == 0 and self._is_complete:
            if self._timer is not None:
                self._timer.cancel()
            finish = self._finish
            self.close()
            if finish is not None:
                finish()

    def close(self) -> None:
        """Forget the callback and the waits, so that no reference cycle keeps the request in memory."""
        self._finish = None
        self._waits = []

    def _on_timeout(self) -> None:
        self._timer = None
        for wait in self._waits:
            wait.time_out()
