"""The response to a request some of whose partitions may have to wait: made when the last one has its
outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nilometer.broker.replicas.delayed_requests import DelayedRequest
from nilometer.broker.replies import Reply, WaitingReply


class DelayedReply:
    def __init__(self, respond: Callable[[], Reply]) -> None:
        """``respond`` makes the response from the outcomes, which the caller keeps."""
        self.delayed = DelayedRequest(self._finish)
        self._respond = respond
        self._waiting: WaitingReply | None = None

    def reply(self, timeout_ms: int) -> Reply | asyncio.Future[Reply]:
        if not self.delayed.is_waiting:
            self.delayed.close()
            return self._respond()
        self._waiting = WaitingReply()
        self.delayed.start_timer(timeout_ms)
        return self._waiting

    def _finish(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(self._respond())
