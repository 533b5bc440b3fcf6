"""Bounded turns: how long one piece of work holds the event loop, and what the loop has measured of it.

A *turn* is what the event loop runs before it looks at its sockets again. All clients share the loop, so each
waits for the turns of all others. Work whose size a client chooses is *long work*: it runs in slices of at
most ``SLICE_US``, and in one iteration of the loop only one slice of all long work runs (:meth:`Turns.call`,
:class:`LongWork`). So many large requests slow each other down, and no other client.

The watchdog measures processor time, which a busy machine does not change much: each turn that is noted has
all that the event loop's thread has used since the last noted one. Nothing can escape it; work that is not
noted itself is counted with the next that is. That clock costs a system call, so it is read only where so
much time has passed that there may have been a long turn.

Requests that must wait are served in fair turns (:mod:`nilometer.broker.fair_queue`).

Invariant: ``ELEMENTS_MAX`` bounds what one slice walks, also where no time passes, as in simulation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

import msgspec

from nilometer.broker.fair_queue import FairQueue
from nilometer.metrics import Distribution
from nilometer.runtime import Clock

T = TypeVar("T")
logger = logging.getLogger("nilometer.broker.turns")

SLICE_US = 2_000
"""A slice of long work ends after this time, and after the step that it is in."""
ELEMENTS_MAX = 1_024
"""A slice ends after so many elements of requests or responses, however fast they were."""
ARRIVED_US = 60_000
"""So long the requests that have arrived are handled before the event loop goes on: thousands of connections
may become readable at once. A thousand with a usual request each take less: to queue those costs more than it
gives."""
SHARE_US = 500
"""So long requests of one connection are handled before others of this iteration of the event loop: one that
has sent many at once, or large ones, would hold all others for the time that those take together."""
IDLE_US = 100
"""After a pause of this length the event loop has looked at its sockets."""
ARRIVED_LATE_US = 10_000
"""So long those that had to wait are handled in an iteration: soon the event loop looks who else has come."""
HAVE_TO_WAIT = -1
RELEASED_AT_ONCE = 256
NOTED_US = 1_000
"""Shorter turns are not counted: nearly all are far shorter, and counting costs time, too."""
LOGGED_US = 100_000
"""A turn of this length is logged: clients have noticed it."""
LOG_EVERY_US = 10_000_000


class Turn(msgspec.Struct, frozen=True):
    """A turn of the event loop that took long."""

    cpu_us: int
    """The processor time of the event loop's thread, in microseconds."""
    work: str
    """What the last noted part of it was: the API, client and size of a request, or the name of a task."""


class Work(Protocol):
    """What a turn was about."""

    @property
    def kind(self) -> str:
        """The API or the task."""
        ...

    def describe(self) -> str: ...


class Turns:
    def __init__(self, clock: Clock) -> None:
        self.now_us = clock.monotonic_us
        self.cpu_us = clock.thread_cpu_us
        self._counted_us = self.cpu_us()
        """The processor time when it was last read, at :attr:`_read_us`."""
        self._noted_us = self._read_us = self.now_us()
        self._queue: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._arrived: FairQueue[Callable[[], None]] = FairQueue()
        """Handle the requests of connections that have to wait: their clients take turns."""
        self._have_to_wait = False  # those that arrive now
        self._has_begun = False  # to handle what arrived in this iteration of the event loop
        self._began_us = -SHARE_US
        self.iteration = 0
        """Counts the iterations of the event loop in which requests arrived; those within ``SHARE_US`` after
        the first one began are one. To see the end of each costs more than a small request: that is done only
        where no pause shows that the loop has looked at its sockets."""
        self._answered = 0  # elements of requests whose wait has ended
        self._answered_in = 0  # the iteration
        self._logged_us = -LOG_EVERY_US
        self.durations = Distribution()
        """Of turns of ``NOTED_US`` and more."""
        self.longest = Turn(0, "")
        self.longest_of: dict[str, int] = {}
        """By API or task, the processor time of its longest turn (microseconds)."""
        self.elements = 0
        """How many elements were walked in the present turn."""
        self.elements_longest = 0
        """The most elements that were walked in one turn."""

    # -- long work

    @property
    def has_long_work(self) -> bool:
        """Whether long work waits for its next slice."""
        return self._is_scheduled

    def call(self, slice_of_work: Callable[[], None]) -> None:
        """Call ``slice_of_work`` in one of the next iterations of the event loop, after all that wait."""
        self._queue.append(slice_of_work)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_next)

    def _call_next(self) -> None:
        slice_of_work = self._queue.popleft()
        self._is_scheduled = bool(self._queue)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._call_next)
        slice_of_work()

    def answer(self, respond: Callable[[], None], elements: int) -> None:
        """Answer a request whose wait has ended, with so many elements: at once, or as long work if those
        that were answered since requests arrived last had ``ELEMENTS_MAX``: one change may end thousands of
        waits."""
        if self._answered_in != self.iteration:
            self._answered_in, self._answered = self.iteration, 0
        self._answered += elements
        if self._answered <= ELEMENTS_MAX:
            respond()
        else:
            self.call(respond)

    async def wait_next(self) -> None:
        """Wait until it is this task's turn among all long work."""
        waiter = asyncio.get_running_loop().create_future()
        self.call(lambda: None if waiter.done() else waiter.set_result(None))
        await waiter

    # -- what arrives

    def arrive(self) -> int:
        """Note that requests have arrived. Return the time (microseconds), or ``HAVE_TO_WAIT``, unless none
        waits, and what arrived before in this iteration of the event loop took less than ``ARRIVED_US``."""
        if self._have_to_wait:
            return HAVE_TO_WAIT
        now_us = self.now_us()
        if self._has_begun:
            return now_us if now_us - self._began_us < ARRIVED_US else HAVE_TO_WAIT
        if now_us - self._began_us >= SHARE_US:
            self._began_us = now_us
            self.iteration += 1
            if now_us - self._noted_us < IDLE_US:
                self._has_begun = True
                asyncio.get_running_loop().call_soon(self._end_iteration)
        return now_us

    def _end_iteration(self) -> None:
        self._has_begun = False

    def call_in_turn(self, client: str, client_id: str, handle: Callable[[], None]) -> None:
        """Call ``handle`` when it is the turn of ``client``, and of ``client_id`` among what it has here."""
        if not self._have_to_wait:
            self._have_to_wait = True
            asyncio.get_running_loop().call_soon(self._handle_arrived)
        self._arrived.add(client, client_id, handle)

    def _handle_arrived(self) -> None:
        began_us = now_us = self.now_us()
        try:
            while self._arrived and now_us - began_us < ARRIVED_LATE_US:
                handle, handled_us = self._arrived.take(), now_us
                try:
                    handle()
                finally:
                    now_us = self.now_us()
                    self._arrived.charge(now_us - handled_us)
        finally:
            self._have_to_wait = bool(self._arrived)
            if self._have_to_wait:
                asyncio.get_running_loop().call_soon(self._handle_arrived)

    # -- the watchdog

    def count(self, elements: int) -> None:
        """Count elements of a request or a response that this turn walks over."""
        self.elements += elements

    def note(self, work: Work | str) -> None:
        """Note the end of a turn; ``work`` is what ran, or the name of its API or task."""
        now_us = self.now_us()
        if self.elements:
            self.elements_longest = max(self.elements_longest, self.elements)
            self.elements = 0
        if now_us - self._read_us >= NOTED_US:
            self._measure(work, now_us)
        self._noted_us = now_us

    def _measure(self, work: Work | str, now_us: int) -> None:
        cpu_us = self.cpu_us()
        # Short turns may have ended since the clock was read, in less than NOTED_US together.
        spent_us = min(cpu_us - self._counted_us, now_us - self._noted_us)
        self._counted_us, self._read_us = cpu_us, now_us
        if spent_us < NOTED_US:
            return
        kind, described = (work, work) if isinstance(work, str) else (work.kind, work.describe())
        self.durations.observe(spent_us, now_us)
        if spent_us > self.longest_of.get(kind, 0):
            self.longest_of[kind] = spent_us
        if spent_us > self.longest.cpu_us:
            self.longest = Turn(spent_us, described)
        if spent_us >= LOGGED_US and now_us - self._logged_us >= LOG_EVERY_US:
            self._logged_us = now_us
            logger.warning(
                "The event loop was held for %d ms of processor time: %s", spent_us // 1000, described
            )

    def begin(self) -> None:
        """Begin to measure: the broker has started, which takes long turns."""
        self.longest, self.longest_of = Turn(0, ""), {}
        self.elements = self.elements_longest = 0
        self.durations = Distribution()
        self._counted_us = self.cpu_us()
        self._noted_us = self._read_us = self.now_us()

    def noted(self, work: Coroutine[Any, Any, T], name: str) -> Coroutine[Any, Any, T]:
        """Return ``work`` as a coroutine that notes each of its steps."""
        return _Noted(self, work, name)


class _Noted(Coroutine[Any, Any, T]):
    """A coroutine itself, rather than one that awaits ``work``: what is cancelled before its first step ends
    ``work``, too, and each step passes through one frame less."""

    __slots__ = ("_name", "_turns", "_work")

    def __init__(self, turns: Turns, work: Coroutine[Any, Any, T], name: str) -> None:
        self._turns, self._work, self._name = turns, work, name

    def send(self, value: Any) -> Any:
        try:
            return self._work.send(value)
        finally:
            self._turns.note(self._name)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        try:
            return self._work.throw(typ if val is None else val)
        finally:
            del typ, val, tb  # its traceback refers to this frame: both would stay as garbage
            self._turns.note(self._name)

    def close(self) -> None:
        self._work.close()

    def __next__(self) -> Any:
        return self.send(None)

    def __iter__(self) -> Generator[Any, Any, T]:
        return self  # type: ignore[return-value]  # it has what `await` uses of a generator

    __await__ = __iter__


class LongWork:
    """One piece of long work: ``await work.step(n)`` after each part of it, with the elements it had."""

    __slots__ = ("_began_us", "_elements", "_on_wait", "_turns", "walked")

    def __init__(self, turns: Turns, on_wait: Callable[[], None] | None = None) -> None:
        """``on_wait`` is called before the work waits for others."""
        self._turns = turns
        self._on_wait = on_wait
        self._began_us = turns.now_us()
        self._elements = 0
        self.walked = 0
        """How many elements all its steps had."""

    @property
    def is_slice_over(self) -> bool:
        return self._elements >= ELEMENTS_MAX or self._turns.now_us() - self._began_us >= SLICE_US

    async def step(self, elements: int) -> None:
        """Go on at once, or when it is this work's turn again, if its slice is used up."""
        self._turns.count(elements)
        self._elements += elements
        self.walked += elements
        if self.is_slice_over:
            await self._turns.wait_next()
            self._began_us = self._turns.now_us()
            self._elements = 0

    async def go_through(
        self, steps: Generator[int, None, T], on_step: Callable[[int], Awaitable[None]] | None = None
    ) -> T:
        """Go on with ``steps``, each of which yields how many elements it had; return their result.

        ``on_step`` is awaited with that number before the next step."""
        while True:
            try:
                elements = next(steps)
            except StopIteration as done:
                return done.value
            if on_step is not None:
                await on_step(elements)
            await self.step(elements)

    async def wait(self, result: Awaitable[T]) -> T:
        """Wait for what others decide or do, which may take minutes: nothing that others need is held."""
        if isinstance(result, asyncio.Future) and result.done():
            return result.result()
        if self._on_wait is not None:
            self._on_wait()
        waited_for = await result
        self._began_us, self._elements = self._turns.now_us(), 0
        return waited_for

    async def release(self, items: list[Any]) -> None:
        """Empty a list slice by slice: to free hundreds of thousands of objects at once takes long."""
        await self.step(1)
        while items:
            del items[-RELEASED_AT_ONCE:]
            await self.step(RELEASED_AT_ONCE)


class PromptWork:
    """Work of the broker itself in slices: ``await work.step()`` after each element of it. It goes on in the
    next iteration of the event loop, whatever long work the clients have there."""

    __slots__ = ("_began_us", "_elements", "_now_us")

    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._began_us = now_us()
        self._elements = 0

    async def step(self) -> None:
        self._elements += 1
        if self._elements >= ELEMENTS_MAX or self._now_us() - self._began_us >= SLICE_US:
            await asyncio.sleep(0)
            self._began_us = self._now_us()
            self._elements = 0

    async def go_through(self, steps: Generator[int, None, T]) -> T:
        """Go on with ``steps``; return their result."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value
            await self.step()


# How long a request keeps the event loop busy, in several steps: without the times in which it waits.


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
