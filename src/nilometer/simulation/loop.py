"""An asyncio event loop whose clock jumps from one event to the next.

Nothing here sleeps, selects or starts a thread: when nothing is ready, time moves to the next timer. Order
depends on the order of calls alone: ready callbacks run first in, first out; timers by time, and those of
one time in the order the heap gives, which is a function of the calls made.

Every callback belongs to the *process* in whose context it was made (none: the world itself). A callback of
a dead process is dropped, that of a paused one is held back until the process goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import base_events, events
from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class Deadlock(Exception):
    """Nothing is ready and no timer is set: whoever waits will wait for ever."""


class ProcessGone(BaseException):
    """Raised inside a crashed process at whatever it touches. Not an Exception: no handler is to catch it."""


class Owner(Protocol):
    """What the loop needs to know of a process."""

    alive: bool
    paused: bool
    held: list[events.Handle]

    def adopt(self, task: asyncio.Task[Any]) -> None: ...


CURRENT: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("process", default=None)


class _JumpingSelector:
    """Stands where the base loop waits for sockets: moves the clock instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is ready, and no timer is set")
        if timeout > 0:
            self._loop.jump()
        return []


class _Handle(events.Handle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _TimerHandle(events.TimerHandle):
    def _run(self) -> None:
        if _may_run(self):
            super()._run()


def _may_run(handle: Any) -> bool:
    process: Owner | None = handle._context.get(CURRENT)
    if process is None:
        return True
    if process.paused and process.alive:
        process.held.append(handle)
        return False
    return process.alive


class VirtualLoop(base_events.BaseEventLoop):
    _ready: Any
    _scheduled: Any

    def __init__(self) -> None:
        super().__init__()
        self._selector = _JumpingSelector(self)
        self._now = 0.0
        self._clock_resolution = 1e-9
        self.steps = 0
        """How often the clock moved."""
        self.set_task_factory(_adopting_factory)  # type: ignore[arg-type]

    def time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def jump(self) -> None:
        self.steps += 1
        self._now = max(self._now, self._scheduled[0]._when)

    def release(self, handles: list[events.Handle]) -> None:
        """Callbacks of a process that was paused: next in line, in their order."""
        self._ready.extend(handle for handle in handles if not handle.cancelled())

    def in_process(
        self, delay: float, process: Owner | None, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back after ``delay`` seconds as ``process``, whoever asks for it (None: as the world)."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, process)
        self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """As always, but it knows whose it is: what a dead process never looked at is nobody's concern."""
        future: asyncio.Future[Any] = super().create_future()
        future.owner = CURRENT.get()  # type: ignore[attr-defined]
        return future

    # ---- what the base class calls

    def _call_soon(self, callback: Any, args: Any, context: Any) -> events.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> events.TimerHandle:
        import heapq

        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
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
