"""Transactions in the simulated cluster: programs commit, abort, crash, and resume as zombies.

``SEEDS`` are few and fixed; together they must show everything that is counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nilometer.cluster.states import GROUP_METADATA_TOPIC
from nilometer.simulation.plan import NEARLY_EXHAUSTED, Kind, Plan, draw, draw_transactions, schedule
from nilometer.simulation.run import Exit, run
from nilometer.simulation.transaction_workload import TransactionWorkload
from nilometer.simulation.workload.transactions import V1, V2

MINUTES = 0.4
SEEDS = ((V1, 1), (V2, 6))
KINDS = (Kind.CRASH, Kind.CRASH, Kind.CUT, Kind.CLIENT_CRASH)
MEAN_GAP_S, LONGEST_S = 1.0, 4.0
COUNTED = (
    "compaction rounds that removed records",
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


@pytest.mark.thorough
def test_transactions_hold_what_they_promise_and_all_that_is_counted_happens() -> None:
    done: Counter[str] = Counter()
    for version, seed in SEEDS:
        verdict = run(plan(version, seed))
        assert verdict.exit is Exit.CLEAN, (version, seed, verdict.findings)
        done += verdict.workloads
    assert [what for what in COUNTED if not done[what]] == [], done


def test_offsets_are_on_two_replicas_before_they_are_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    judge = TransactionWorkload.judge_at_rest

    def noting(self: TransactionWorkload) -> Iterator[str]:
        image = self.coordinators._cluster.newest_image
        assert image is not None
        found.append(image.min_insync_replicas(GROUP_METADATA_TOPIC))
        return judge(self)

    monkeypatch.setattr(TransactionWorkload, "judge_at_rest", noting)
    assert run(replace(plan(V1, 2), minutes=0.05, faults=())).exit is Exit.CLEAN
    assert found == [2]
