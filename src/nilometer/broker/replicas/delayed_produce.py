"""Produce requests that wait: for the high watermark (acks=all) or for a group commit.

A request with acks=all is answered when, for each of its partitions, one of these holds:

- A. the append failed: its error is the answer;
- B. the high watermark has reached the end of what was appended (or the ISR shrank below
  ``min.insync.replicas`` meanwhile: NOT_ENOUGH_REPLICAS_AFTER_APPEND);
- C. this broker no longer leads: NOT_LEADER_OR_FOLLOWER, the outcome is unknown to the producer;

and REQUEST_TIMED_OUT for partitions where none holds when its time is over. Partitions release their waits
in offset order; nothing here is polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nilometer.wire.errors import ErrorCode


@dataclass(slots=True)
class ProduceOutcome:
    """What a producer is told of one partition."""

    index: int
    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None

    def fail(self, error: ErrorCode, message: str | None = None) -> None:
        """Becomes an error answer; offsets are withdrawn, since the outcome is not certain."""
        self.error, self.message = error, message
        self.base_offset = self.log_append_time_ms = self.log_start_offset = -1


class ProduceWait:
    """One partition's part of a waiting request."""

    __slots__ = ("_request", "done", "outcome")

    def __init__(self, request: DelayedProduce, outcome: ProduceOutcome) -> None:
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


class DelayedProduce:
    """A produce request with at least one partition still waiting."""

    __slots__ = ("_finish", "_timer", "_unreleased", "_waits")

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish: Callable[[], None] | None = finish
        self._waits: list[ProduceWait] = []
        self._unreleased = 0
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, outcome: ProduceOutcome) -> ProduceWait:
        wait = ProduceWait(self, outcome)
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
        """Let go of who waits: the answer is known."""
        self._finish = None
        self._waits = []

    def _on_timeout(self) -> None:
        self._timer = None
        _release_all(self._waits, ErrorCode.request_timed_out)


def _release_all(waits: Sequence[ProduceWait], error: ErrorCode) -> None:
    for wait in waits:
        wait.release(error)
