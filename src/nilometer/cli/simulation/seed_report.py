"""Simulates one seed and makes its report: findings, replay command, minimised faults, last log lines.

A report is plain data, so that a child process can send it to the parent, which prints it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from nilometer.simulation.minimise import minimise
from nilometer.simulation.plan import Kind, Plan, draw
from nilometer.simulation.recording.cluster_recorder import ClusterRecorder
from nilometer.simulation.recording.format import EVENTS_MAX, Header
from nilometer.simulation.recording.writer import RecordingWriter
from nilometer.simulation.run import Exit, Record, Verdict, run

FINDINGS_SHOWN = 10
OUTCOMES = {
    Exit.CRASH: "a program crashed",
    Exit.NO_CONVERGENCE: "the cluster did not recover",
    Exit.WRONG_RESULT: "a wrong response, or lost records",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """What of a run is recorded, and where."""

    path: Path
    from_s: float = 0.0
    events_max: int = EVENTS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOptions:
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
    store = "a folder" if plan.ensemble is None else "ZooKeeper"
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
