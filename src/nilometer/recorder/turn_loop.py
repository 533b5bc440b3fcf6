"""An event loop that is driven from outside: by a real loop while a broker is recorded, then by the tape.

Callbacks run first in, first out, and are counted. What time it is, is let in with each event. So all that
happens follows from what is let in, and after how many callbacks.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from asyncio import base_events
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

CANCELLED_TIMERS_KEPT = 256
"""How many cancelled timers may stay in the heap, or as many as there are active ones."""
ROUNDING = 1e-6
"""So many milliseconds are an error of computing, not a time."""


class TurnLoop(base_events.BaseEventLoop):
    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.executed = 0
        """How many callbacks have begun."""
        self.now_ms = 0
        self._now_s = 0.0
        self._timers: list[tuple[int, int, asyncio.TimerHandle]] = []
        """A heap of (milliseconds, number, timer): those of the same millisecond in the order in which they
        were set, whatever was cancelled."""
        self._timers_set = 0
        self._timers_cancelled = 0
        self.signal_handlers: dict[int, Callable[[], object]] = {}

    def time(self) -> float:
        """Return the time at which something was last let in, in seconds."""
        return self._now_s

    def set_time(self, now_ms: int) -> None:
        """Make the timers ready that are due."""
        self.now_ms = now_ms
        self._now_s = now_ms / 1000
        timers = self._timers
        while timers and timers[0][0] <= now_ms:
            timer = heapq.heappop(timers)[2]
            if timer.cancelled():
                self._timers_cancelled -= 1
            else:
                self._ready.append(timer)

    @property
    def next_timer_s(self) -> float | None:
        """When the next timer is due; cancelled ones are forgotten."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        return timers[0][0] / 1000 if timers else None

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers_set += 1
        due_ms = math.ceil(when * 1000 - ROUNDING)  # the clock shows whole milliseconds
        heapq.heappush(self._timers, (due_ms, self._timers_set, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._timers_cancelled += 1
        if self._timers_cancelled > max(CANCELLED_TIMERS_KEPT, len(self._timers) // 2):
            self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    @property
    def ready(self) -> int:
        """How many callbacks wait."""
        return len(self._ready)

    def run_one(self) -> None:
        """Run the first callback that waits; of a cancelled one nothing but the count."""
        handle = self._ready.popleft()
        self.executed += 1
        if not handle.cancelled():
            handle._run()

    def within(self, function: Callable[..., T], *args: Any) -> T:
        """Call ``function`` as the code of this loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(before)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self.signal_handlers[sig] = lambda: callback(*args)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        raise RuntimeError("no threads in a recording: use Disk.offload")

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("no threads in a recording: use Disk.offload")

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
