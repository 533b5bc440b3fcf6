"""``nilometer simulate``: simulates clusters by seed: injects faults, repairs them, and checks the results.

Exit codes: 0 no seed failed; of the first seed that failed: 10 a program crashed, 11 the cluster did not
recover, 12 a response was wrong or acknowledged data was lost.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace

from nilometer.cli import commands
from nilometer.cli.commands import Minutes
from nilometer.simulation.cluster_recorder import ClusterRecorder
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import STORES, Plan, draw
from nilometer.simulation.recording import EVENTS_MAX, EVENTS_READ_MAX, Header, RecordingWriter
from nilometer.simulation.run import Exit, Observe, Verdict, run

# Simulates seeds, in several processes at once, and reports them in the order of their numbers.
#
# The report of a seed has its findings, the command that replays it, its minimised faults and its last log
# lines.
#
# Each child process simulates one seed at a time and is replaced after some, so that memory left over from
# runs does not add up. Seeds are independent, so the process in which one runs does not change its result.
#
# Invariants: after a seed has failed no further seed is started, unless ``keep_going``; when the caller stops
# reading reports, for any reason, all child processes are ended.

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
    remote_storage: bool | None = None
    """Whether the seeds have remote storage; None: each seed draws that."""
    only: tuple[int, ...] | None = None
    trace: Path | None = None
    recording: RecordingOptions | None = None
    checks_recordings: bool = False
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
        return _report(_play(plan_of(seed, options), options), options)
    except Exception as error:
        return failed_report(seed, options, [repr(error), *traceback.format_exc().splitlines()])


def plan_of(seed: int, options: SeedOptions) -> Plan:
    return draw(seed, options.minutes, options.faults, options.store, remote_storage=options.remote_storage)


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
        return run(
            plan,
            only=options.only,
            sink=sink,
            observe=record,
            checks_recordings=options.checks_recordings,
        )


def _lines_to(path: Path, files: ExitStack) -> Callable[[str], object]:
    file = files.enter_context(path.open("w", encoding="utf-8"))
    return lambda line: file.write(f"{line}\n")


def _recorder(plan: Plan, options: SeedOptions, recording: RecordingOptions, files: ExitStack) -> Observe:
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
        few = _fewest(verdict, options)
        output.append(f"with fewer faults: {replay_command(plan.seed, replace(options, only=tuple(few)))}")
        output += [f"  {fault}" for fault in plan.faults if fault.number in few]
    for who, lines in verdict.process_logs.items():
        output.append(f"last log lines of {who}:")
        output += [f"  {line}" for line in lines]
    return output


def _fewest(verdict: Verdict, options: SeedOptions) -> list[int]:
    def fails(numbers: Sequence[int]) -> bool:
        again = run(verdict.plan, only=numbers, checks_recordings=options.checks_recordings)
        return again.exit is verdict.exit

    few, _ = minimise([fault.number for fault in verdict.plan.faults], fails)
    return few


def replay_command(seed: int, options: SeedOptions) -> str:
    command = f"nilometer simulate --seed {seed} --minutes {options.minutes:g}"
    if options.faults is not None:
        command += f" --faults {','.join(kind.value for kind in options.faults)}"
    if options.store is not None:
        command += f" --store {options.store}"
    if options.remote_storage is not None:
        command += " --remote-storage" if options.remote_storage else " --no-remote-storage"
    if options.checks_recordings:
        command += " --check-recordings"
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


KINDS = ", ".join(kind.value for kind in Kind)


def _kinds(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Kind, ...] | None:
    if text is None:
        return None
    try:
        return tuple(Kind(name.strip()) for name in text.split(",") if name.strip())
    except ValueError as error:
        raise click.BadParameter(f"{error}; the kinds are {KINDS}") from None


def _numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise click.BadParameter("must be numbers of faults, separated by commas") from None


@commands.command("simulate")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="The number of seeds to simulate."
)
@click.option(
    "--minutes",
    type=Minutes(0.1),
    default=5.0,
    show_default=True,
    help="Simulated minutes per seed.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="The number of processes that simulate seeds at the same time.  [default: the number of cores]",
)
@click.option("--faults", callback=_kinds, help=f"Kinds of faults instead of a drawn mix: {KINDS}.")
@click.option(
    "--store", type=click.Choice(STORES), help="The coordination store. [default: drawn from the seed]"
)
@click.option(
    "--remote-storage/--no-remote-storage",
    default=None,
    help="Whether older records of topics are in remote storage only. [default: drawn from the seed]",
)
@click.option(
    "--only",
    callback=_numbers,
    help="Inject only these faults of the schedule, by number, separated by commas.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write every event of the run to this file.",
)
@click.option(
    "--record",
    "recording",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Record the brokers' replicas and messages to this file, for `nilometer console --replay`.",
)
@click.option(
    "--record-from",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="Record from this simulated time on (seconds).",
)
@click.option(
    "--record-events",
    type=click.IntRange(1, EVENTS_READ_MAX),
    default=EVENTS_MAX,
    show_default=True,
    help="Stop the recording after this many events.",
)
@click.option(
    "--check-recordings",
    "checks_recordings",
    is_flag=True,
    help="Record every start of a broker as the flight recorder does, replay it after the run, and fail "
    "where that is not equal. Seeds with ZooKeeper, a quorum or invariant faults are not recorded.",
)
@click.option(
    "--minimise/--no-minimise",
    "minimises",
    default=True,
    help="After a failure, look for the smallest set of faults that still fails.",
)
@click.option("--keep-going", is_flag=True, help="Simulate all seeds, even after one failed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text: a line for each seed.")
def simulate(
    seed: int,
    seeds: int,
    minutes: float,
    jobs: int | None,
    faults: tuple[Kind, ...] | None,
    store: str | None,
    remote_storage: bool | None,
    only: tuple[int, ...] | None,
    trace: Path | None,
    recording: Path | None,
    record_from: float,
    record_events: int,
    checks_recordings: bool,
    minimises: bool,
    keep_going: bool,
    as_json: bool,
) -> None:
    """Simulate whole clusters under faults: crashes, power cuts, cut links, full disks, wrong clocks.

    The seed determines every event: the same seed takes the same course on any machine.
    """
    if trace is not None and seeds > 1:
        raise click.UsageError("--trace goes with one seed")
    if recording is not None and seeds > 1:
        raise click.UsageError("--record goes with one seed")
    for path in (trace, recording):
        if path is not None:
            path.touch()  # else a file that cannot be written would be reported as a failed seed
    options = SeedOptions(
        minutes=minutes,
        faults=faults,
        store=store,
        remote_storage=remote_storage,
        only=only,
        trace=trace,
        recording=None
        if recording is None
        else RecordingOptions(path=recording, from_s=record_from, events_max=record_events),
        checks_recordings=checks_recordings,
        minimises=minimises,
    )
    numbers = range(seed, seed + seeds)
    if only:
        _check_faults(only, [plan_of(one, options) for one in numbers])
    jobs = min(seeds, jobs or len(os.sched_getaffinity(0)))
    summary = Summary(seeds, as_json)
    with closing(_reports(numbers, jobs, options, keep_going)) as reports:
        try:
            for report in reports:
                summary.add(report)
        except KeyboardInterrupt:
            summary.print_summary()
            raise
    summary.print_summary()
    sys.exit(summary.failed[0].exit if summary.failed else 0)


def _check_faults(only: Sequence[int], plans: Sequence[Plan]) -> None:
    """Raise UsageError for a number that no fault of the schedules has."""
    known = {fault.number for plan in plans for fault in plan.faults}
    if missing := sorted(set(only) - known):
        shown = ", ".join(map(str, sorted(known))) or "none"
        raise click.UsageError(
            f"--only: no fault has the number {', '.join(map(str, missing))}; the schedule has {shown}"
        )


def _reports(
    seeds: Sequence[int], jobs: int, options: SeedOptions, keep_going: bool
) -> Generator[SeedReport]:
    if jobs > 1:
        yield from play_in_processes(seeds, jobs, options, keep_going=keep_going)
        return
    for seed in seeds:
        report = play_seed(seed, options)
        yield report
        if report.exit and not keep_going:
            return


def _document(report: SeedReport) -> dict[str, object]:
    return {
        "seed": report.seed,
        "exit": report.exit,
        "simulated_s": report.simulated_s,
        "trace": report.digest,
        "counts": dict(report.counts),
        "headline": report.headline,
        "lines": list(report.lines),
    }


class Summary:
    """Collects and prints the reports of the seeds simulated so far."""

    def __init__(self, seeds: int, as_json: bool = False) -> None:
        self._seeds = seeds
        self._as_json = as_json
        self._done = 0
        self._simulated_s = 0.0
        self._begun = time.perf_counter()
        self._counts = Counter[str]()
        self._seeds_with = Counter[str]()
        """In how many seeds each operation was executed."""
        self.failed: list[SeedReport] = []

    @property
    def _times_real(self) -> float:
        return self._simulated_s / max(time.perf_counter() - self._begun, 1e-9)

    def add(self, report: SeedReport) -> None:
        self._done += 1
        self._simulated_s += report.simulated_s
        self._counts.update(report.counts)
        self._seeds_with.update(report.counts.keys())
        self._clear_progress()
        if report.exit:
            self.failed.append(report)
        if self._as_json:
            click.echo(json.dumps(_document(report)))
        else:
            if self._seeds == 1:
                click.echo(report.headline)
            for line in report.lines:
                click.echo(line)
        if sys.stderr.isatty():
            progress = f"\r{self._done} of {self._seeds} seeds, {self._times_real:.0f} x real time "
            click.echo(progress, nl=False, err=True)

    def print_summary(self) -> None:
        """Print how often each operation was executed, the totals, and one line for each seed that failed."""
        self._clear_progress()
        if self._as_json:
            return
        for name, count in sorted(self._counts.items()):
            click.echo(f"{count:>10} {name} (in {self._seeds_with[name]} of {self._done} seeds)")
        click.echo(
            f"{self._done} seeds, {self._simulated_s / 60:.1f} simulated minutes, "
            f"{self._times_real:.0f} x real time: {len(self.failed)} failed"
        )
        for report in self.failed:
            click.echo(report.summary)

    @staticmethod
    def _clear_progress() -> None:
        if sys.stderr.isatty():
            click.echo("\r" + " " * 60 + "\r", nl=False, err=True)
