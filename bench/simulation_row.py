"""`python -m bench.simulation_row`: how fast the simulation runs, on one core.

Two measures, by processor time, so that what else the machine does counts little: three brokers without
faults at ten sends a simulated second, and a set of seeds as `nilometer simulate` plays them.
Writes bench/results/simulation.json and simulation.md. `--dry` only shows.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from nilometer.simulation.loop import Pace
from nilometer.simulation.plan import Plan, TopicPlan, draw
from nilometer.simulation.run import run
from nilometer.simulation.workload.producers import WriterPlan

RESULTS = Path(__file__).with_name("results")
MINUTES = 5.0
SEEDS = range(6)
MEAN_BURST = 1 + 9.5 / 8
"""What a writer of the simulation sends at once, on average; see its burst."""
SENDS_PER_S = 10.0
"""By two writers; two readers follow them."""


@dataclass(frozen=True, slots=True)
class Speed:
    simulated_s: float
    cpu_s: float
    seeds: int

    @property
    def times_real(self) -> float:
        return self.simulated_s / self.cpu_s


def quiet_plan(minutes: float) -> Plan:
    writer = WriterPlan(topic="topic0", partitions=3, per_second=SENDS_PER_S / 2 / MEAN_BURST)
    topic = TopicPlan(
        name="topic0", partitions=3, min_insync_replicas=2, flush_each=False, segment_ms=604_800_000
    )
    return replace(
        draw(1, minutes, []),
        brokers=3,
        one_machine=False,
        churn=False,
        moves=False,
        group=None,
        pace=Pace(),
        store_pace=Pace(),
        cold=0.0,
        delay_spike_share=0.0,
        topics=(topic,),
        writers=(writer, writer),
        clock_rates=(1.0, 1.0, 1.0),
    )


def measure(plans: list[Plan]) -> Speed:
    gc.collect()
    simulated_s = 0.0
    began = time.process_time()
    for plan in plans:
        verdict = run(plan)
        assert verdict.findings == [], verdict.findings
        simulated_s += verdict.simulated_s
    return Speed(simulated_s, time.process_time() - began, len(plans))


def rows() -> list[tuple[str, str]]:
    run(quiet_plan(0.2))  # what is compiled or imported late
    quiet = measure([quiet_plan(MINUTES)])
    with_faults = measure([draw(seed, MINUTES) for seed in SEEDS])
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        (
            "three brokers, ten sends a second, two readers, no faults",
            f"{quiet.times_real:.0f} × real time",
        ),
        ("… simulated hours a minute", f"{quiet.times_real / 60:.2f}"),
        (f"{len(SEEDS)} drawn seeds of {MINUTES:g} minutes", f"{with_faults.times_real:.0f} × real time"),
        ("… simulated hours a minute", f"{with_faults.times_real / 60:.2f}"),
        ("… seeds a minute", f"{with_faults.seeds / with_faults.cpu_s * 60:.1f}"),
        ("largest memory of the process", f"{memory_mb:.0f} MB"),
    ]


@click.command(help=__doc__)
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(dry: bool) -> None:
    found = rows()
    for title, number in found:
        click.echo(f"{title}: {number}")
    if dry:
        return
    facts = {
        "command": "python -m bench.simulation_row",
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numbers": found,
    }
    (RESULTS / "simulation.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    table = [f"| {title} | **{number}** |" for title, number in found]
    head = [
        "# The simulation's speed",
        "",
        f"`{facts['command']}`, {facts['date']}, one core of {facts['cores']},",
    ]
    head += [f"Python {facts['python']}, processor time.", "", "| | |", "|---|---|"]
    (RESULTS / "simulation.md").write_text("\n".join([*head, *table, ""]))


if __name__ == "__main__":
    main()
