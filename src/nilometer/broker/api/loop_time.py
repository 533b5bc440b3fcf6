"""How long a request keeps the event loop busy, in several steps: without the times in which it waits."""

from __future__ import annotations

from collections.abc import Callable


class LoopTime:
    """A stopwatch, which runs from the start."""

    __slots__ = ("_began_us", "_now_us", "_spent_us")

    def __init__(self, now_us: Callable[[], int], began_us: int) -> None:
        """``began_us``: when the request arrived."""
        self._now_us = now_us
        self._began_us: int | None = began_us
        self._spent_us = 0

    def pause(self) -> None:
        """The request waits."""
        self._spent_us, self._began_us = self.spent_us, None

    def resume(self) -> None:
        """The request goes on."""
        if self._began_us is None:
            self._began_us = self._now_us()

    @property
    def spent_us(self) -> int:
        if self._began_us is None:
            return self._spent_us
        return self._spent_us + self._now_us() - self._began_us
