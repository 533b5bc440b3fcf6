"""A future whose listeners are called by what ends it, not in the next iteration of the event loop.

For results that the latency of a request depends on. A listener may be called in the middle of other work,
so it must do no more than pass the result on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DirectFuture(asyncio.Future[T], Generic[T]):
    """Listeners are called in the order in which they were added, before the callbacks of ``asyncio``."""

    __slots__ = ("_listeners", "on_cancelled")

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._listeners: list[Callable[[DirectFuture[T]], None]] = []
        self.on_cancelled: Callable[[], object] | None = None
        """Called first if the future is cancelled."""

    def add_listener(self, listener: Callable[[DirectFuture[T]], None]) -> None:
        """Call ``listener`` when the future is done, whatever the outcome; now if it is."""
        if self.done():
            listener(self)
        else:
            self._listeners.append(listener)

    def set_result(self, result: T) -> None:
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
