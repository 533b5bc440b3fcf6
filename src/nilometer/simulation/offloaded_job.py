"""Offloaded work of a process (``Disk.offload``), simulated step by step.

A job is plain synchronous code. It runs on its own stack (a greenlet), is suspended before disk calls and
resumed by a timer of its process. So between two disk calls of a job anything else may happen, as with a
thread: other jobs, the event loop's own disk calls, a crash, a power failure. How often a job is suspended,
and for how long, is set by the disk's :class:`Pace`.

Invariants: a job of a paused process does not run; a job of a dead process never continues: its stack is
unwound by raising ProcessGone, as is every disk call that it makes meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Protocol

import greenlet
import msgspec

from nilometer.simulation.loop import Owner, ProcessGone, VirtualLoop

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
