"""Simulates seeds, in several processes at once, and reports them in the order of their numbers.

The report of a seed has its findings, the command that replays it, its minimised faults and its last log
lines.

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
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nilometer.simulation.cluster_recorder import ClusterRecorder
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import Plan, draw
from nilometer.simulation.recording import EVENTS_MAX, Header, RecordingWriter
from nilometer.simulation.run import Exit, Record, Verdict, run

# Reducing the faults of a failing seed by leaving some out (delta debugging, with a limit of runs).
#
# Leaving faults out changes everything after them, so the result is a small schedule that fails in the same
# way (the same exit code), not necessarily the smallest.

RUNS_MAX = 40


def minimise(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> tuple[list[int], int]:
    """Return a small subset of ``numbers`` for which ``fails`` is true, and how often ``fails`` was called.

    ``fails`` must be true for all of ``numbers``.
    """
    kept = list(numbers)
    asked = 0
    size = max(1, len(kept) // 2)
    while kept:
        removed = False
        for begin in range(0, len(kept), size):
            rest = kept[:begin] + kept[begin + size :]
            if asked >= RUNS_MAX:
                return kept, asked
            asked += 1
            if fails(rest):
                kept, removed = rest, True
                break
        if not removed:
            if size == 1:
                return kept, asked
            size = max(1, size // 2)
        else:
            size = max(1, min(size, len(kept) // 2))
    return kept, asked


# --- one seed: a report is plain data, so that a child process can send it to the parent, which prints it.

FINDINGS_SHOWN = 10
OUTCOMES = {
    Exit.CRASH: "a program crashed",
    Exit.NO_CONVERGENCE: "the cluster did not recover",
    Exit.WRONG_RESULT: "a wrong response, or lost records",
}


class RecordingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a run is recorded, and where."""

    path: Path
    from_s: float = 0.0
    events_max: int = EVENTS_MAX


class SeedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options with which seeds are simulated."""

    minutes: float
    faults: tuple[Kind, ...] | None = None
    store: str | None = None
    """The coordination store of all seeds; None: each seed draws one."""
    only: tuple[int, ...] | None = None
    trace: Path | None = None
    recording: RecordingOptions | None = None
    minimises: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport:
    seed: int
    exit: int
    simulated_s: float
    real_s: float
    digest: str = ""
    """The digest of the trace."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each operation of the clients and operators was executed, by name."""
    headline: str = ""
    """One line with the run's brokers, faults and numbers."""
    summary: str = ""
    """One line about a failure: its kind, the first finding and the replay command; else empty."""
    lines: tuple[str, ...] = ()
    """The full report of a failure; else empty."""


def play_seed(seed: int, options: SeedOptions) -> SeedReport:
    """Simulate ``seed`` and return its report; minimise a failure's faults if the options request it.

    An exception of the simulation itself is reported as a failure of this seed.
    """
    try:
        return _report(_play(draw(seed, options.minutes, options.faults, options.store), options), options)
    except Exception as error:
        return failed_report(seed, options, [repr(error), *traceback.format_exc().splitlines()])


def failed_report(seed: int, options: SeedOptions, reasons: Sequence[str]) -> SeedReport:
    """Return the report of a seed whose simulation ended without a verdict."""
    command = replay_command(seed, options)
    return SeedReport(
        seed=seed,
        exit=int(Exit.CRASH),
        simulated_s=0.0,
        real_s=0.0,
        headline=f"seed {seed}: no verdict",
        summary=f"seed {seed}: no verdict: {reasons[0]}; replay: {command}",
        lines=(f"seed {seed} came to no verdict:", *(f"  {each}" for each in reasons), f"replay: {command}"),
    )


def _report(verdict: Verdict, options: SeedOptions) -> SeedReport:
    failed = verdict.exit is not Exit.CLEAN
    return SeedReport(
        seed=verdict.plan.seed,
        exit=int(verdict.exit),
        simulated_s=verdict.simulated_s,
        real_s=verdict.real_s,
        digest=verdict.digest,
        counts=dict(verdict.workloads),
        headline=_headline(verdict),
        summary=_summary(verdict, options) if failed else "",
        lines=tuple(_failure_lines(verdict, options)) if failed else (),
    )


def _play(plan: Plan, options: SeedOptions) -> Verdict:
    with ExitStack() as files:
        sink = None if options.trace is None else _lines_to(options.trace, files)
        record = None if options.recording is None else _recorder(plan, options, options.recording, files)
        return run(plan, only=options.only, sink=sink, record=record)


def _lines_to(path: Path, files: ExitStack) -> Callable[[str], object]:
    file = files.enter_context(path.open("w", encoding="utf-8"))
    return lambda line: file.write(f"{line}\n")


def _recorder(plan: Plan, options: SeedOptions, recording: RecordingOptions, files: ExitStack) -> Record:
    kinds = ", ".join(kind.value for kind in plan.kinds) or "no faults"
    header = Header(
        title=f"Simulation of seed {plan.seed}",
        description=f"{plan.brokers} brokers; {kinds}. Recorded by: {replay_command(plan.seed, options)}",
    )
    writer = RecordingWriter(_lines_to(recording.path, files), header, recording.events_max)
    return lambda cluster: ClusterRecorder(cluster, writer, recording.from_s)


def _headline(verdict: Verdict) -> str:
    plan = verdict.plan
    shape = "one machine" if plan.one_machine else f"{plan.brokers} machines"
    store = "a quorum" if plan.quorum else "ZooKeeper" if plan.ensemble else "a folder"
    by_name = sorted(verdict.faults.items(), key=lambda item: item[0].value)
    faults = ", ".join(f"{count} {kind.value}" for kind, count in by_name) or "no faults"
    return (
        f"seed {plan.seed}: {plan.brokers} brokers on {shape}, {store}; {faults}; {verdict.sends} sends, "
        f"{verdict.acknowledged} acknowledged, {verdict.read} records read; "
        f"{verdict.simulated_s:.0f} s in {verdict.real_s:.1f} s; trace {verdict.digest}"
    )


def _summary(verdict: Verdict, options: SeedOptions) -> str:
    plan = verdict.plan
    first = (verdict.findings or ["no finding was recorded"])[0].splitlines()[0]
    command = replay_command(plan.seed, options)
    return f"seed {plan.seed}: {OUTCOMES[verdict.exit]}: {first}; replay: {command}"


def _failure_lines(verdict: Verdict, options: SeedOptions) -> list[str]:
    """Return the findings, the replay command, the minimised faults, and each process's last log lines."""
    plan = verdict.plan
    output = [f"seed {plan.seed} failed: {OUTCOMES[verdict.exit]} (exit code {int(verdict.exit)})"]
    output += [f"  {finding}" for finding in verdict.findings[:FINDINGS_SHOWN]]
    if len(verdict.findings) > FINDINGS_SHOWN:
        output.append(f"  … and {len(verdict.findings) - FINDINGS_SHOWN} more")
    output.append(f"replay: {replay_command(plan.seed, options)}")
    if options.minimises and options.only is None and plan.faults:
        few = _fewest(verdict)
        output.append(f"with fewer faults: {replay_command(plan.seed, replace(options, only=tuple(few)))}")
        output += [f"  {fault}" for fault in plan.faults if fault.number in few]
    for who, lines in verdict.process_logs.items():
        output.append(f"last log lines of {who}:")
        output += [f"  {line}" for line in lines]
    return output


def _fewest(verdict: Verdict) -> list[int]:
    def fails(numbers: Sequence[int]) -> bool:
        return run(verdict.plan, only=numbers).exit is verdict.exit

    few, _ = minimise([fault.number for fault in verdict.plan.faults], fails)
    return few


def replay_command(seed: int, options: SeedOptions) -> str:
    command = f"nilometer simulate --seed {seed} --minutes {options.minutes:g}"
    if options.faults is not None:
        command += f" --faults {','.join(kind.value for kind in options.faults)}"
    if options.store is not None:
        command += f" --store {options.store}"
    if options.only is not None:
        command += f" --only {','.join(map(str, options.only))}" if options.only else " --only ''"
    return command


# --- several processes

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
