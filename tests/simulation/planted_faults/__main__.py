"""``PYTHONPATH=tests/simulation python -m planted_faults NAME --seed N``: one run with a planted fault.

A failure is printed as by ``nilometer simulate``, with the smallest set of injected faults that shows it.
``--only`` replays that set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from planted_faults.catalogue import BY_NAME
from planted_faults.planting import play

from nilometer.cli.simulate import minimise
from nilometer.simulation.run import Exit

FINDINGS_SHOWN = 3
LAST_WORDS = 3


@click.command(help=__doc__)
@click.argument("name", type=click.Choice(list(BY_NAME)))
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--only", help="Inject only these faults of the schedule, by number, separated by commas.")
def main(name: str, seed: int, only: str | None) -> None:
    fault = BY_NAME[name]
    chosen = None if only is None else [int(number) for number in only.split(",") if number.strip()]
    verdict = play(fault, seed, chosen)
    if verdict.exit is Exit.CLEAN:
        click.echo(f"seed {seed}: clean, in spite of {name}; trace {verdict.digest}")
        return
    click.echo(f"seed {seed} failed (exit code {int(verdict.exit)}); trace {verdict.digest}")
    for finding in verdict.findings[:FINDINGS_SHOWN]:
        click.echo(f"  {finding}")
    if chosen is None:

        def fails(numbers: Sequence[int]) -> bool:
            return play(fault, seed, numbers).exit is verdict.exit

        few, asked = minimise([one.number for one in verdict.plan.faults], fails)
        count = len(verdict.plan.faults)
        click.echo(f"{len(few)} of {count} injected faults are enough, as {asked} more runs show:")
        for one in verdict.plan.faults:
            if one.number in few:
                click.echo(f"  {one}")
        numbers = ",".join(map(str, few))
        program = "PYTHONPATH=tests/simulation python -m planted_faults"
        click.echo(f"replay: {program} {name} --seed {seed} --only {numbers!r}")
    for who, lines in verdict.process_logs.items():
        if who.startswith("broker"):
            click.echo(f"last log lines of {who}:")
            for said in lines[-LAST_WORDS:]:
                click.echo(f"  {said}")
    sys.exit(verdict.exit)


if __name__ == "__main__":
    main()
