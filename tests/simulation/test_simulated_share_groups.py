"""A share group in the simulated cluster: members die, hang over their locks, acknowledge late, release and
reject, while brokers crash, and with them leaders and share coordinators.

``SEEDS`` are few and fixed; together they must show everything that is counted.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from nilometer.simulation.plan import Kind, Plan, draw, draw_share, schedule
from nilometer.simulation.run import Exit, run

MINUTES = 0.4
SEEDS = (0, 1)
KINDS = (Kind.CRASH, Kind.CRASH, Kind.CUT, Kind.CLIENT_CRASH)
COUNTED = (
    "share deliveries",
    "share records put",
    "share records accepted",
    "share records rejected",
    "share records released",
    "share records renewed",
    "share records forgotten",
    "share connections given up",
    "share acknowledgements refused",
    "share start offsets asked for",
)


def plan(seed: int) -> Plan:
    """What the seed draws, but with hardly anything beside the share group."""
    drawn = draw(seed, MINUTES, KINDS)
    share = draw_share(random.Random(f"{seed}/share"), share=1.0)
    assert share is not None
    share = replace(share, per_second=4.0, lock_ms=1_500)
    return replace(
        drawn,
        faults=schedule(
            random.Random(f"{seed}/dense"),
            KINDS,
            drawn.fault_phase_s,
            drawn.brokers,
            mean_gap_s=2.0,
            longest_s=4.0,
        ),
        topics=drawn.topics[:1],
        writers=drawn.writers[:1],
        churn=False,
        moves=False,
        rogue=False,
        rights=False,
        administers=False,
        reuses_names=False,
        compacts=False,
        transactions=None,
        group=None,
        membership=None,
        share=share,
        settings={**drawn.settings, **share.settings},
    )


@pytest.mark.thorough
def test_every_record_is_done_and_none_is_given_twice_at_a_time() -> None:
    done = Counter[str]()
    for seed in SEEDS:
        verdict = run(plan(seed))
        assert verdict.exit is Exit.CLEAN, (seed, verdict.findings)
        done += verdict.workloads
    assert [name for name in COUNTED if not done[name]] == []


def test_the_same_seed_gives_the_same_run() -> None:
    short = replace(plan(3), minutes=0.1, faults=())
    assert run(short).digest == run(short).digest
