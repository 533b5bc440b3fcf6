"""``nilometer simulate``: whole clusters in a virtual world, hurt, healed, and judged; a failure is a number.

Exit codes: 0 all seeds clean; of the first seed that failed: 10 a program crashed, 11 the cluster did not
become well again, 12 something wrong was said or lost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from nilometer.simulation.minimise import minimise
from nilometer.simulation.plan import Kind, Plan, draw
from nilometer.simulation.run import Exit, Verdict, run

KINDS = ", ".join(kind.value for kind in Kind)
FINDINGS_SHOWN = 10
WHAT = {
    Exit.CRASH: "a program crashed",
    Exit.NO_CONVERGENCE: "the cluster did not become well again",
    Exit.WRONG_RESULT: "something wrong was said, or lost",
}


def _kinds(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[Kind, ...] | None:
    if text is None:
        return None
    try:
        return tuple(Kind(name.strip()) for name in text.split(",") if name.strip())
    except ValueError as problem:
        raise click.BadParameter(f"{problem}; the kinds are {KINDS}") from None


def _numbers(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise click.BadParameter("must be numbers of faults, separated by commas") from None


@click.command("simulate")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many seeds to play.")
@click.option(
    "--minutes", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Simulated minutes."
)
@click.option("--faults", callback=_kinds, help=f"Kinds of faults instead of a drawn mix: {KINDS}.")
@click.option("--only", callback=_numbers, help="Play these faults of the schedule alone, by their numbers.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path), help="Write all that happens here.")
@click.option(
    "--minimise/--no-minimise", "minimises", default=True, help="Look for the fewest faults that fail."
)
@click.option("--keep-going", is_flag=True, help="Play all seeds, whatever the first ones show.")
def simulate(
    seed: int,
    seeds: int,
    minutes: float,
    faults: tuple[Kind, ...] | None,
    only: tuple[int, ...] | None,
    trace: Path | None,
    minimises: bool,
    keep_going: bool,
) -> None:
    """Play whole clusters in a virtual world: crashes, power cuts, partitions, full disks, wrong clocks.

    Everything follows from the seed: the same seed takes the same course, on any machine.
    """
    if trace is not None and seeds > 1:
        raise click.UsageError("--trace goes with one seed")
    begun, simulated_s = time.perf_counter(), 0.0
    failed: list[Verdict] = []
    number = seed
    for number in range(seed, seed + seeds):
        plan = draw(number, minutes, faults)
        verdict = _play(plan, only, trace)
        simulated_s += verdict.simulated_s
        _progress(verdict, seeds, number - seed + 1, simulated_s, time.perf_counter() - begun)
        if verdict.exit is not Exit.CLEAN:
            failed.append(verdict)
            _tell(verdict, faults, only, minimises)
            if not keep_going:
                break
    _clear_progress()
    speed = simulated_s / 3600 / max(time.perf_counter() - begun, 1e-9)
    click.echo(
        f"{number - seed + 1} seeds, {simulated_s / 60:.1f} simulated minutes, "
        f"{speed:.4f} simulated hours per second: {len(failed)} failed"
    )
    sys.exit(failed[0].exit if failed else 0)


def _play(plan: Plan, only: tuple[int, ...] | None, trace: Path | None) -> Verdict:
    if trace is None:
        verdict = run(plan, only=only)
    else:
        with trace.open("w", encoding="utf-8") as lines:
            verdict = run(plan, only=only, sink=lambda line: lines.write(line + "\n"))
    return verdict


def _progress(verdict: Verdict, seeds: int, done: int, simulated_s: float, real_s: float) -> None:
    if sys.stderr.isatty():
        speed = simulated_s / 3600 / max(real_s, 1e-9)
        click.echo(f"\r{done} of {seeds} seeds, {speed:.4f} simulated hours per second ", nl=False, err=True)
    if seeds == 1:
        plan = verdict.plan
        shape = "one machine" if plan.one_machine else f"{plan.brokers} machines"
        faults = ", ".join(f"{count} {kind.value}" for kind, count in _by_name(verdict)) or "no faults"
        click.echo(
            f"seed {plan.seed}: {plan.brokers} brokers on {shape}; {faults}; {verdict.sends} sends, "
            f"{verdict.acknowledged} acknowledged, {verdict.read} records read; "
            f"{verdict.simulated_s:.0f} s in {verdict.real_s:.1f} s; trace {verdict.digest}"
        )


def _by_name(verdict: Verdict) -> list[tuple[Kind, int]]:
    return sorted(verdict.faults.items(), key=lambda item: item[0].value)


def _clear_progress() -> None:
    if sys.stderr.isatty():
        click.echo("\r" + " " * 60 + "\r", nl=False, err=True)


def _tell(
    verdict: Verdict, faults: tuple[Kind, ...] | None, only: tuple[int, ...] | None, minimises: bool
) -> None:
    """The finding, the replay command, the faults, and each broker's last words."""
    plan = verdict.plan
    _clear_progress()
    click.echo(f"seed {plan.seed} failed: {WHAT[verdict.exit]} (exit code {int(verdict.exit)})")
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        click.echo(f"  {finding}")
    if len(verdict.findings) > FINDINGS_SHOWN:
        click.echo(f"  … and {len(verdict.findings) - FINDINGS_SHOWN} more")
    click.echo(f"replay: {replay_command(plan, faults, only)}")
    if minimises and only is None and plan.faults:
        few = _fewest(verdict)
        click.echo(f"fewest faults found: {replay_command(plan, faults, tuple(few))}")
        for fault in plan.faults:
            if fault.number in few:
                click.echo(f"  {fault}")
    for who, lines in verdict.story.items():
        click.echo(f"the last of {who}:")
        for line in lines:
            click.echo(f"  {line}")


def _fewest(verdict: Verdict) -> list[int]:
    def fails(numbers: Sequence[int]) -> bool:
        return run(verdict.plan, only=numbers).exit is verdict.exit

    few, _ = minimise([fault.number for fault in verdict.plan.faults], fails)
    return few


def replay_command(plan: Plan, faults: tuple[Kind, ...] | None, only: tuple[int, ...] | None) -> str:
    command = f"nilometer simulate --seed {plan.seed} --minutes {plan.minutes:g}"
    if faults is not None:
        command += f" --faults {','.join(kind.value for kind in faults)}"
    if only is not None:
        command += f" --only {','.join(map(str, only))}" if only else " --only ''"
    return command
