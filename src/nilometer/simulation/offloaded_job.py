"""Work that a process handed to its disk's threads, played step by step.

A job is plain synchronous code; it runs on a stack of its own (a greenlet), which it leaves before disk calls
and comes back to when a timer of its process fires. So whatever else the loop has to do happens between two
calls of a job, as between those of a thread: other jobs, the event loop's own disk calls, a crash, a loss of
power. How often a job is left, and for how long, is the disk's :class:`Pace`.

Invariants: a job of a paused process stands still; a job of a dead process never runs again: what it has on
its stack is unwound with ProcessGone, and every disk call on the way is refused with the same.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import greenlet

from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop

STALL_LOOK_S = 0.5
"""How soon work that stands still on a disk goes on once the disk is healed before its time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How the work of one disk is spread over time. Bounds are milliseconds."""

    pause_share: float = 0.0
    """How likely a job is left before a disk call; 0: jobs are atomic but for their fsyncs."""
    pause_ms: tuple[float, float] = (0.01, 1.0)
    sync_ms: tuple[float, float] = (0.0, 0.0)
    """What an fsync takes, of a file or a folder."""


ATOMIC = Pace()
"""Work that is done at once, when its turn comes."""


class JobDisk(Protocol):
    """What a job needs to know of the disk that it began on."""

    stalled_until: float


class OffloadedJob:
    """One piece of work; ``done`` is settled with what came of it."""

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
        """From inside the job: let the rest of the world go on for so long. Raises ProcessGone."""
        self._loop.in_process(delay_s, self._process, self._go_on)
        self._loop.job = None
        loops_own = self._stack.parent
        assert loops_own is not None, "it has begun, and has not ended"
        loops_own.switch()
        if not self._process.alive:
            raise ProcessGone

    def kill(self) -> None:
        """The process died: unwind the job. What it would log on its way out never happened."""
        if not self._stack:
            return  # it never began, or has ended
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
                return  # its process ends, and no task waits for it
            if not self._done.done():
                self._done.set_exception(error)
        else:
            if not self._done.done():
                self._done.set_result(outcome)


def maybe_leave(loop: VirtualLoop, process: Owner, pace: Pace, chance: random.Random) -> None:
    """Before a disk call of ``process``: if a job makes it, leave that for a moment, or not, by ``pace``."""
    job = loop.job
    if job is not None and pace.pause_share and chance.random() < pace.pause_share:
        job.leave(chance.uniform(*pace.pause_ms) / 1000)


def spend_fsync(loop: VirtualLoop, pace: Pace, chance: random.Random) -> None:
    """The time of an fsync; of one that is not offloaded too little to be seen."""
    job = loop.job
    if job is not None and pace.sync_ms[1]:
        job.leave(chance.uniform(*pace.sync_ms) / 1000)
