"""``nilometer simulate``: simulates clusters by seed: injects faults, repairs them, and checks the results.

Exit codes: 0 no seed failed; of the first seed that failed: 10 a program crashed, 11 the cluster did not
recover, 12 a response was wrong or acknowledged data was lost.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import click

from nilometer.cli import commands
from nilometer.cli.commands import Minutes
from nilometer.cli.simulated_seeds import (
    RecordingOptions,
    SeedOptions,
    SeedReport,
    play_in_processes,
    play_seed,
)
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import STORES, Plan, draw
from nilometer.simulation.recording import EVENTS_MAX, EVENTS_READ_MAX

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
    only: tuple[int, ...] | None,
    trace: Path | None,
    recording: Path | None,
    record_from: float,
    record_events: int,
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
        only=only,
        trace=trace,
        recording=None
        if recording is None
        else RecordingOptions(path=recording, from_s=record_from, events_max=record_events),
        minimises=minimises,
    )
    numbers = range(seed, seed + seeds)
    if only:
        _check_faults(only, [draw(one, minutes, faults, store) for one in numbers])
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
