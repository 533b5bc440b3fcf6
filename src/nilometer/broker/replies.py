"""The response to one request, now or later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from nilometer.wire.compression import Bytes

Reply = Sequence[Bytes] | None
"""The response to one request: buffers that form a frame, or None for no response (acks=0)."""


class CloseConnection(Exception):
    """No response in a format that the client understands is possible: the connection is closed, and the
    reason logged."""


class WaitingReply(asyncio.Future[Reply]):
    """The response to a request that waits for another event: records, an acknowledgement.

    Listeners are called by what ends the wait, not in the next iteration of the event loop as the callbacks
    of other futures: so a response leaves with the event that it waited for. They may be called in the middle
    of an append, so they must not process another request.
    """

    __slots__ = ("_listeners", "on_cancelled")

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._listeners: list[Callable[[WaitingReply], None]] = []
        self.on_cancelled: Callable[[], object] | None = None
        """Called if the client disconnects before the response is made."""

    def add_listener(self, listener: Callable[[WaitingReply], None]) -> None:
        """Call ``listener`` when the wait has ended, whatever the outcome; now if it has."""
        if self.done():
            listener(self)
        else:
            self._listeners.append(listener)

    def set_result(self, result: Reply) -> None:
        super().set_result(result)
        self._notify()

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self._notify()

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        on_cancelled, self.on_cancelled = self.on_cancelled, None
        if on_cancelled is not None:
            on_cancelled()
        self._notify()
        return True

    def _notify(self) -> None:
        listeners, self._listeners, self.on_cancelled = self._listeners, [], None
        for listener in listeners:
            listener(self)
