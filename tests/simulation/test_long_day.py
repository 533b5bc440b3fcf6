"""A cluster that runs for a simulated day, and holds in the end what it held in its first hours.

No broker is restarted, which would free what it has kept; links are cut and processes stand still.
``NILOMETER_DAY_HOURS=2 pytest -m soak tests/simulation/test_long_day.py`` plays a shorter one.
"""

from __future__ import annotations

import os

import pytest

from nilometer.simulation.cluster import Cluster
from nilometer.simulation.fault_kinds import Kind
from nilometer.simulation.plan import FAULT_PHASE_SHARE, draw
from nilometer.simulation.run import run
from support.growth import Growth, grown

HOURS = float(os.environ.get("NILOMETER_DAY_HOURS", "24"))
SAMPLES = 48
SEEDS = (36, 28)
"""Their topics have a retention. The first has transactions, groups, topics whose names are used again, moves
and a client that sends what only brokers may; the second a share group, compaction and one more broker."""


@pytest.mark.soak
@pytest.mark.timeout(6 * 3_600)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_grows_in_a_day(seed: int) -> None:
    plan = draw(seed, HOURS * 60 / FAULT_PHASE_SHARE, (Kind.CUT, Kind.PAUSE))
    growths: list[Growth] = []

    def observe(cluster: Cluster) -> Growth:
        growths.append(Growth(cluster, plan.fault_phase_s / SAMPLES))
        return growths[0]

    verdict = run(plan, observe=observe)
    (growth,) = growths
    samples = growth.samples
    assert len(samples) >= SAMPLES
    print(f"\nseed {seed}: {verdict.simulated_s / 3_600:.1f} hours in {verdict.real_s:.0f} s")
    print(", ".join(f"{count} {name}" for name, count in sorted(verdict.workloads.items())))
    assert verdict.findings == []
    found = growth.grown()
    assert found == [], "\n".join(found)


def test_what_grows_is_found_and_what_goes_up_and_down_is_not() -> None:
    samples = [
        {"leak": 100 * hour, "cache": min(1_000, 500 * hour), "wave": 3_000 * (hour % 2)}
        for hour in range(24)
    ]
    assert [one.split(":")[0] for one in grown(samples)] == ["leak"]
