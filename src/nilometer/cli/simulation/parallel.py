"""Seeds simulated in several processes at once, and reported in the order of their numbers.

Each child process plays one seed at a time and is replaced after some, so that what a run leaves behind in
memory never adds up. A seed has its world to itself, so where it is played changes nothing of its course.

Invariants: no seed is handed out after one before it was found to fail, unless all are wanted; when the
caller stops listening, however that comes about, no child is left.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from nilometer.cli.simulation.seed_report import SeedOptions, SeedReport, failed_report, play_seed

SEEDS_OF_A_PROCESS = 25
"""A child is replaced after so many."""
GARBAGE_THRESHOLD = 20_000
"""Objects between two collections: a world makes far more that live on than that die in circles."""
ENDING_S = 5.0
"""How long a child that was terminated may take."""

Play = Callable[[int, SeedOptions], SeedReport]
Pipe = connection.Connection


class _Child:
    """One process and the pipe to it."""

    def __init__(self, context: SpawnContext, play: Play, options: SeedOptions) -> None:
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, play, options), daemon=True)
        resource_tracker.ensure_running()  # starting it later, with the first child, would unblock SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()  # inherits that: the parent alone answers to Ctrl-C
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
        """What came of the seed at hand; a child that ended without a report failed it."""
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
) -> Iterator[SeedReport]:
    """The reports of ``seeds`` in their order, as soon as there is one.

    Unless ``keep_going``, ends behind the first that failed. ``play`` must be a function that other
    processes can import. Raises ChildDied.
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
    """Those that have something to say, once there is one."""
    by_pipe = {child.pipe: child for child in _busy(children)}
    return [by_pipe[pipe] for pipe in connection.wait(list(by_pipe)) if isinstance(pipe, Pipe)]


def _serve(pipe: Pipe, play: Play, options: SeedOptions) -> None:
    """A child: plays what it is asked for until the pipe ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.set_threshold(GARBAGE_THRESHOLD)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            pipe.send(play(pipe.recv(), options))


def _end_with_parent() -> None:
    """The children end when the parent was killed: no process would read their results."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"
    parent.join()
    os._exit(1)
