"""Transactions in the simulated cluster: programs commit, abort, crash, and resume as zombies.

``SEEDS`` are few and fixed; together they must show everything that is counted.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from nilometer.simulation.plan import NEARLY_EXHAUSTED, Kind, Plan, draw, draw_transactions, schedule
from nilometer.simulation.run import Exit, run
from nilometer.simulation.workload.transactions.session import V1, V2

MINUTES = 0.4
SEEDS = ((V1, 2), (V2, 2))
KINDS = (Kind.CRASH, Kind.CRASH, Kind.CUT, Kind.CLIENT_CRASH)
MEAN_GAP_S, LONGEST_S = 1.0, 4.0
COUNTED = (
    "records compacted away",
    "coordinators that took over",
    "transactions, committed",
    "transactions, committed by a group member",
    "transactions, aborted",
    "transactions, left open",
    "transactions, timed out",
    "transactions, zombies stopped",
    "transactions, ends repeated",
    "transactions, rejected verifications",
    "transactions, producer ids rotated",
    "transactions, finished by another coordinator",
)


def plan(version: int, seed: int) -> Plan:
    """What the seed draws, but with hardly anything beside transactions and compaction."""
    drawn = draw(seed, MINUTES, KINDS)
    transactions = draw_transactions(random.Random(f"{seed}/transactions"), share=1.0)
    assert transactions is not None
    transactions = replace(
        transactions, version=version, first_epoch=NEARLY_EXHAUSTED, timeout_ms=3_000, gap_s=0.2
    )
    return replace(
        drawn,
        faults=schedule(
            random.Random(f"{seed}/dense"),
            KINDS,
            drawn.fault_phase_s,
            drawn.brokers,
            mean_gap_s=MEAN_GAP_S,
            longest_s=LONGEST_S,
        ),
        topics=drawn.topics[:1],
        writers=drawn.writers[:1],
        churn=False,
        moves=False,
        rogue=False,
        administers=False,
        reuses_names=False,
        group=None,
        membership=None,
        compacts=True,
        transactions=transactions,
        settings={**drawn.settings, **transactions.settings},
    )


def test_transactions_hold_what_they_promise_and_all_that_is_counted_happens() -> None:
    done: Counter[str] = Counter()
    for version, seed in SEEDS:
        verdict = run(plan(version, seed))
        assert verdict.exit is Exit.CLEAN, (version, seed, verdict.findings)
        done += verdict.workloads
    assert [what for what in COUNTED if not done[what]] == [], done
