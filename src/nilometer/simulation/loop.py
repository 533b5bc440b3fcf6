"""An asyncio event loop whose clock jumps from one event to the next.

Nothing here sleeps, selects or starts a thread: when nothing is ready, time moves to the next timer. Order
depends on the order of calls alone: ready callbacks run first in, first out; timers by time, and those of
one time in the order they were set.

Every callback belongs to the *process* in whose context it was made (none: the world itself). A callback of
a dead process is dropped, that of a paused one is held back until the process goes on. Each process has one
context, which everything that the world does to it runs in.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import base_events, events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

CANCELLED_TIMERS_KEPT = 256
"""So many timers that were called off may stay in the heap, or as many as are still wanted."""


CALLBACKS_PER_S_MAX = 100_000
"""In one second of the world's time; a busy cluster of five needs a few thousand."""


class Livelock(Exception):
    """All are busy and nothing comes of it: messages go round and round, or time stands still."""


class Deadlock(Exception):
    """Nothing is ready and no timer is set: whoever waits will wait for ever."""


class ProcessGone(BaseException):
    """Raised inside a crashed process at whatever it touches. Not an Exception: no handler is to catch it."""


class Owner(Protocol):
    """What the loop needs to know of a process."""

    alive: bool
    paused: bool
    held: list[events.Handle]
    context: contextvars.Context
    """Made by :func:`context_of`."""

    def adopt(self, task: asyncio.Task[Any]) -> None: ...


CURRENT: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("process", default=None)


def context_of(process: Owner | None) -> contextvars.Context:
    """A new context for what ``process`` does (None: the world)."""
    context = contextvars.Context()
    context.run(CURRENT.set, process)
    return context


class _NoSelector:
    """Stands where the base loop keeps what waits for sockets."""

    def select(self, timeout: float | None) -> list[Any]:
        raise RuntimeError("no sockets in a simulation")


class VirtualLoop(base_events.BaseEventLoop):
    _ready: deque[events.Handle]
    _scheduled: list[tuple[float, int, events.TimerHandle]]
    """By time, then in the order they were set."""
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._now = 0.0
        self._world = context_of(None)
        self._timers = 0
        self._cancelled = 0
        self._callbacks = 0
        self._count_until = 1.0
        self.steps = 0
        """How often the clock moved."""
        self.set_task_factory(_adopting_factory)  # type: ignore[arg-type]

    def time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def _run_once(self) -> None:
        """What the base class runs for ever: the callbacks that are ready, after moving time if none is."""
        ready = self._ready
        self._take_due()
        if not ready and not self._stopping:
            if not self._scheduled:
                raise Deadlock("nothing is ready, and no timer is set")
            self.steps += 1
            self._now = self._scheduled[0][0]
            self._take_due()
        self._count(len(ready))
        for _ in range(len(ready)):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            process: Owner | None = handle._context.get(CURRENT)
            if process is None or (process.alive and not process.paused):
                handle._run()
            elif process.alive:
                process.held.append(handle)

    def _count(self, callbacks: int) -> None:
        self._callbacks += callbacks
        if self._now >= self._count_until:
            self._callbacks, self._count_until = callbacks, self._now + 1.0
        elif self._callbacks > CALLBACKS_PER_S_MAX:
            self._callbacks = 0
            raise Livelock(f"more than {CALLBACKS_PER_S_MAX} callbacks in the second up to {self._now:.3f} s")

    def _take_due(self) -> None:
        """Timers whose time has come are ready; those that were called off are dropped on the way."""
        scheduled, now = self._scheduled, self._now
        while scheduled:
            when, _, timer = scheduled[0]
            cancelled: bool = timer._cancelled  # type: ignore[attr-defined]
            if when > now and not cancelled:
                return
            heapq.heappop(scheduled)
            if cancelled:
                self._cancelled -= 1
            else:
                timer._scheduled = False  # type: ignore[attr-defined]
                self._ready.append(timer)

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if not handle._scheduled:
            return
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_TIMERS_KEPT, len(self._scheduled) // 2):
            self._scheduled = [timer for timer in self._scheduled if not timer[2].cancelled()]
            heapq.heapify(self._scheduled)
            self._cancelled = 0

    def release(self, handles: list[events.Handle]) -> None:
        """Callbacks of a process that was paused: next in line, in their order."""
        self._ready.extend(handle for handle in handles if not handle.cancelled())

    def in_process(
        self, delay: float, process: Owner | None, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back after ``delay`` seconds as ``process``, whoever asks for it (None: as the world)."""
        context = self._world if process is None else process.context
        if delay <= 0:
            self._ready.append(events.Handle(callback, args, self, context))
        else:
            self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """As always, but it knows whose it is: what a dead process never looked at is nobody's concern."""
        future: asyncio.Future[Any] = super().create_future()
        future.owner = CURRENT.get()  # type: ignore[attr-defined]
        return future

    # ---- what the base class calls

    def _call_soon(self, callback: Any, args: Any, context: Any) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # ---- what has no place in a virtual world

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("no threads in a simulation: use Disk.offload")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no sockets in a simulation: use Runtime.network")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no sockets in a simulation: use Runtime.network")


def _adopting_factory(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, context=context)
    process = CURRENT.get()
    if process is not None:
        task.owner = process  # type: ignore[attr-defined]
        process.adopt(task)
    return task
