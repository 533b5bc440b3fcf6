"""Simulates seeds in several processes at once, and reports them in the order of their numbers.

Each child process simulates one seed at a time and is replaced after some, so that memory left over from runs
does not add up. Seeds are independent, so the process in which one runs does not change its result.

Invariants: after a seed has failed no further seed is started, unless ``keep_going``; when the caller stops
reading reports, for any reason, all child processes are ended.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from nilometer.cli.simulation.seed_report import SeedOptions, SeedReport, failed_report, play_seed

SEEDS_OF_A_PROCESS = 25
"""The number of seeds after which a child process is replaced."""
GARBAGE_THRESHOLD = 20_000
"""Python's garbage collection threshold: high, since a simulation makes many objects but few cycles."""
ENDING_S = 5.0
"""How long a child process may take to end after SIGTERM; then it is killed."""

Play = Callable[[int, SeedOptions], SeedReport]
Pipe = connection.Connection


class _Child:
    """One child process and the pipe to it."""

    def __init__(self, context: SpawnContext, play: Play, options: SeedOptions) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, play, options), daemon=True)
        resource_tracker.ensure_running()  # started with the first child it would unblock SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()  # inherits the blocked SIGINT: only the parent handles Ctrl-C
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._options = options
        self.seed: int | None = None
        self.played = 0
        self.broken = False

    def begin(self, seed: int) -> None:
        self.seed = seed
        self.played += 1
        self.pipe.send(seed)

    def report(self) -> SeedReport:
        """Wait for and return the report of the current seed; a failure if the process ended without one."""
        assert self.seed is not None
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join(ENDING_S)
            self.broken = True
            why = f"the process that played it ended with exit code {self.process.exitcode}"
            return failed_report(self.seed, self._options, [why])
        finally:
            self.seed = None

    def end(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(ENDING_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def play_in_processes(
    seeds: Sequence[int], jobs: int, options: SeedOptions, *, keep_going: bool, play: Play = play_seed
) -> Generator[SeedReport, None, None]:
    """Yield the reports of ``seeds`` in order, simulated by ``jobs`` processes.

    Unless ``keep_going``, ends after the first failure. ``play`` simulates one seed; it must be a function
    that other processes can import.
    """
    context = multiprocessing.get_context("spawn")
    waiting, due = deque(seeds), deque(seeds)
    done: dict[int, SeedReport] = {}
    children: list[_Child] = []
    try:
        while due:
            while waiting and len(_busy(children)) < jobs:
                _idle(children, context, play, options).begin(waiting.popleft())
            for child in _ready(children):
                report = child.report()
                done[report.seed] = report
                if child.broken or child.played >= SEEDS_OF_A_PROCESS:
                    child.end()
                    children.remove(child)
                if report.exit and not keep_going:
                    waiting.clear()
            while due and due[0] in done:
                report = done.pop(due.popleft())
                yield report
                if report.exit and not keep_going:
                    return
    finally:
        for child in children:
            child.end()


def _busy(children: Sequence[_Child]) -> list[_Child]:
    return [child for child in children if child.seed is not None]


def _idle(children: list[_Child], context: SpawnContext, play: Play, options: SeedOptions) -> _Child:
    for child in children:
        if child.seed is None:
            return child
    children.append(_Child(context, play, options))
    return children[-1]


def _ready(children: Sequence[_Child]) -> list[_Child]:
    """Wait until a busy child has a report or has ended; return all such children."""
    by_pipe = {child.pipe: child for child in _busy(children)}
    return [by_pipe[pipe] for pipe in connection.wait(list(by_pipe)) if isinstance(pipe, Pipe)]


def _serve(pipe: Pipe, play: Play, options: SeedOptions) -> None:
    """Simulate the seeds received from the pipe until it is closed; runs in a child process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(GARBAGE_THRESHOLD)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send(play(pipe.recv(), options))


def _end_with_parent() -> None:
    """End this child process when its parent has ended, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    parent.join()
    os._exit(1)
