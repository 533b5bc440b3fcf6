"""Virtual time: an asyncio event loop whose clock jumps from one event to the next, and the work that a
process does beside its loop (``Disk.offload``), step by step on the same clock.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import random
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import greenlet
import msgspec

# An asyncio event loop whose clock jumps from one event to the next.
#
# It never sleeps, selects or starts a thread: when no callback is ready, time advances to the next timer. The
# order only depends on the order of calls: ready callbacks run first in, first out; timers by time, and those
# of the same time in the order in which they were set.
#
# Every callback belongs to the *process* in whose context it was created (none: the simulation itself). A
# callback of a dead process is dropped, that of a paused one is held until the process resumes. Each process
# has one context, in which the simulation's calls to it also run.

CANCELLED_TIMERS_KEPT = 256
"""How many cancelled timers may stay in the heap, or as many as there are active ones."""


CALLBACKS_PER_S_MAX = 100_000
"""The limit in one simulated second; a busy cluster of five brokers needs a few thousand."""
BUSY_CALLBACKS_PER_S = 10_000
BUSY_S_MAX = 20
"""How many consecutive seconds may have more callbacks than BUSY_CALLBACKS_PER_S."""


class Livelock(Exception):
    """Too many callbacks for too long: probably messages are sent back and forth without end."""


class Deadlock(Exception):
    """No callback is ready and no timer is set, so every wait would last forever."""


class ProcessGone(BaseException):
    """Raised by every operation of a crashed process. Not an Exception, so that no handler catches it."""


class Callback:
    """A scheduled callback: asyncio's Handle and TimerHandle, reduced to what is used here."""

    __slots__ = ("_loop", "args", "called_off", "context", "function", "in_heap", "time")

    def __init__(
        self,
        loop: VirtualLoop,
        function: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        time: float = 0.0,
    ) -> None:
        self._loop = loop
        self.function = function
        self.args = args
        self.context = context
        self.time = time
        self.called_off = False
        self.in_heap = False

    def cancel(self) -> None:
        if not self.called_off:
            self.called_off = True
            self.function, self.args = _nothing, ()
            if self.in_heap:
                self._loop.on_called_off()

    def cancelled(self) -> bool:
        return self.called_off

    def when(self) -> float:
        return self.time


def _nothing() -> None:
    """The function of a cancelled callback."""


class Job(Protocol):
    """A piece of offloaded work, which runs on its own stack and can be suspended."""

    def leave(self, delay_s: float) -> None: ...


class Owner(Protocol):
    """The interface of a process that the loop uses."""

    alive: bool
    paused: bool
    held: list[Callback]
    """Its callbacks that became ready while it was paused."""
    jobs: dict[Any, None]
    """Its offloaded work in progress, in the order of its start."""
    context: contextvars.Context
    """Created by :func:`context_of`."""
    signal_handlers: dict[int, Callable[[], object]]

    def adopt(self, task: asyncio.Task[Any]) -> None: ...


CURRENT: contextvars.ContextVar[Owner | None] = contextvars.ContextVar("process", default=None)


def context_of(process: Owner | None) -> contextvars.Context:
    """Return a new context for callbacks of ``process`` (None: the simulation)."""
    context = contextvars.Context()
    context.run(CURRENT.set, process)
    return context


class _NoSelector:
    """Replaces the base loop's selector; there are no sockets."""

    def select(self, timeout: float | None) -> list[Any]:
        raise RuntimeError("no sockets in a simulation")


class VirtualLoop(base_events.BaseEventLoop):
    _ready: deque[Callback]
    _scheduled: list[tuple[float, int, Callback]]
    """A heap of (time, sequence number, callback)."""
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
        self._busy_s = 0
        self.job: Job | None = None
        """The offloaded job whose code runs right now, if any."""
        self.steps = 0
        """How often the clock advanced."""
        self.set_task_factory(adopting_factory)  # type: ignore[arg-type]

    def time(self) -> float:
        """Return seconds since the start of the simulation."""
        return self._now

    def _run_once(self) -> None:
        """Run the callbacks that are ready, after advancing time if none is; the base class repeats this."""
        ready, scheduled = self._ready, self._scheduled
        if scheduled and scheduled[0][0] <= self._now:
            self._take_due()
        if not ready and not self._stopping:
            self._move_time()
        self._callbacks += len(ready)
        if self._now >= self._count_until or self._callbacks > CALLBACKS_PER_S_MAX:
            self._count(len(ready))
        for _ in range(len(ready)):
            callback = ready.popleft()
            if callback.called_off:
                continue
            process: Owner | None = callback.context.get(CURRENT)
            if process is None or (process.alive and not process.paused):
                try:
                    callback.context.run(callback.function, *callback.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler(
                        {"message": f"Exception in callback {callback.function}", "exception": error}
                    )
            elif process.alive:
                process.held.append(callback)

    def _move_time(self) -> None:
        while not self._ready:
            if not self._scheduled:
                raise Deadlock("nothing is ready, and no timer is set")
            self.steps += 1
            self._now = max(self._now, self._scheduled[0][0])
            self._take_due()

    def _count(self, callbacks: int) -> None:
        if self._now >= self._count_until:
            self._busy_s = self._busy_s + 1 if self._callbacks > BUSY_CALLBACKS_PER_S else 0
            self._callbacks, self._count_until = callbacks, self._now + 1.0
            if self._busy_s > BUSY_S_MAX:
                self._busy_s = 0
                raise Livelock(f"no idle moment for {BUSY_S_MAX} seconds up to {self._now:.3f} s")
        else:
            self._callbacks = 0
            raise Livelock(f"more than {CALLBACKS_PER_S_MAX} callbacks in the second up to {self._now:.3f} s")

    def _take_due(self) -> None:
        """Make the timers ready whose time has come; drop cancelled ones."""
        scheduled, now, ready = self._scheduled, self._now, self._ready
        while scheduled and scheduled[0][0] <= now:
            timer = heapq.heappop(scheduled)[2]
            timer.in_heap = False
            if timer.called_off:
                self._cancelled -= 1
            else:
                ready.append(timer)

    def on_called_off(self) -> None:
        """Count a cancelled timer in the heap; rebuild the heap if there are too many."""
        self._cancelled += 1
        if self._cancelled > max(CANCELLED_TIMERS_KEPT, len(self._scheduled) // 2):
            self._scheduled = [timer for timer in self._scheduled if not timer[2].called_off]
            heapq.heapify(self._scheduled)
            self._cancelled = 0

    def release(self, callbacks: list[Callback]) -> None:
        """Make the held callbacks of a process that resumes ready, in their order."""
        self._ready.extend(callback for callback in callbacks if not callback.called_off)

    def in_process(
        self, delay: float, process: Owner | None, callback: Callable[..., object], *args: Any
    ) -> None:
        """Run ``callback`` after ``delay`` seconds in the context of ``process`` (None: the simulation)."""
        context = self._world if process is None else process.context
        if delay <= 0:
            self._ready.append(Callback(self, callback, args, context))
        else:
            self._set(self._now + delay, callback, args, context)

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future that has its process, so that a crashed process's unretrieved exceptions are not
        reported."""
        future: asyncio.Future[Any] = asyncio.Future(loop=self)
        future.owner = CURRENT.get()  # type: ignore[attr-defined]
        return future

    # ---- what asyncio calls

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        made = Callback(self, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(made)
        return made

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self._set(when, callback, args, contextvars.copy_context() if context is None else context)

    def _set(
        self, when: float, function: Callable[..., object], args: Any, context: contextvars.Context
    ) -> Callback:
        timer = Callback(self, function, args, context, when)
        self._timers += 1
        heapq.heappush(self._scheduled, (when, self._timers, timer))
        timer.in_heap = True
        return timer

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        process = CURRENT.get()
        assert process is not None, "only processes get signals"
        process.signal_handlers[sig] = lambda: callback(*args)

    # ---- not available in a simulation

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError("no threads in a simulation: use Disk.offload")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no sockets in a simulation: use Runtime.network")

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no sockets in a simulation: use Runtime.network")


def adopting_factory(
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


# Offloaded work of a process (``Disk.offload``), simulated step by step.
#
# A job is plain synchronous code. It runs on its own stack (a greenlet), is suspended before disk calls and
# resumed by a timer of its process. So between two disk calls of a job anything else may happen, as with a
# thread: other jobs, the event loop's own disk calls, a crash, a power failure. How often a job is suspended,
# and for how long, is set by the disk's :class:`Pace`.
#
# Invariants: a job of a paused process does not run; a job of a dead process never continues: its stack is
# unwound by raising ProcessGone, as is every disk call that it makes meanwhile.

STALL_LOOK_S = 0.5
"""How often work on a stalled disk checks whether the disk works again."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The timing of offloaded work on one disk. Bounds are in milliseconds."""

    pause_share: float = 0.0
    """The probability that a job is suspended before a disk call; 0: jobs are atomic except for fsyncs."""
    pause_ms: tuple[float, float] = (0.01, 1.0)
    """For how long it is suspended."""
    sync_ms: tuple[float, float] = (0.0, 0.0)
    """How long an fsync of a file or folder takes."""


ATOMIC = Pace()
"""Jobs run without interruption."""


class JobDisk(Protocol):
    """The disk on which a job runs; it hangs until ``stalled_until`` (simulated seconds)."""

    stalled_until: float


class OffloadedJob:
    """One piece of work; ``done`` gets its result or exception."""

    def __init__(
        self,
        loop: VirtualLoop,
        disk: JobDisk,
        process: Owner,
        work: Callable[[], Any],
        done: asyncio.Future[Any],
    ) -> None:
        self._loop = loop
        self._disk = disk
        self._process = process
        self._work = work
        self._done = done
        self._stack = greenlet.greenlet(self._run)
        self._stack.gr_context = process.context.copy()

    def begin(self, delay_s: float) -> None:
        self._process.jobs[self] = None
        self._loop.in_process(delay_s, self._process, self._go_on)

    def leave(self, delay_s: float) -> None:
        """Suspend the job, from inside it, for ``delay_s``.

        Raises ProcessGone if the process dies meanwhile.
        """
        self._loop.in_process(delay_s, self._process, self._go_on)
        self._loop.job = None
        loops_own = self._stack.parent
        assert loops_own is not None, "it has begun, and has not ended"
        loops_own.switch()
        if not self._process.alive:
            raise ProcessGone

    def kill(self) -> None:
        """End the job of a dead process by an exception inside it, without logging anything."""
        if not self._stack:
            return  # it never started, or has ended
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            self._stack.throw(ProcessGone())
        finally:
            logging.disable(before)

    def _go_on(self) -> None:
        stalled_s = self._disk.stalled_until - self._loop.time()
        if stalled_s > 0:
            self._loop.in_process(min(stalled_s, STALL_LOOK_S), self._process, self._go_on)
            return
        self._loop.job = self
        try:
            self._stack.switch()
        finally:
            self._loop.job = None
            if self._stack.dead:
                self._process.jobs.pop(self, None)

    def _run(self) -> None:
        try:
            outcome = self._work()
        except ProcessGone:
            return
        except Exception as error:
            if not self._process.alive:
                return  # the process has ended, so no task waits for the result
            if not self._done.done():
                self._done.set_exception(error)
        else:
            if not self._done.done():
                self._done.set_result(outcome)


def maybe_leave(loop: VirtualLoop, process: Owner, pace: Pace, chance: random.Random) -> None:
    """Suspend the job that is about to make a disk call, with the probability ``pace.pause_share``."""
    job = loop.job
    if job is not None and pace.pause_share and chance.random() < pace.pause_share:
        job.leave(chance.uniform(*pace.pause_ms) / 1000)


def spend_fsync(loop: VirtualLoop, pace: Pace, chance: random.Random) -> None:
    """Suspend the current job for the time of an fsync; an fsync that is not offloaded takes no time."""
    job = loop.job
    if job is not None and pace.sync_ms[1]:
        job.leave(chance.uniform(*pace.sync_ms) / 1000)
