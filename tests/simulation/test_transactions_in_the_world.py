"""Transactions in the simulated cluster: programs commit, abort, crash, and resume as zombies."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from nilometer.simulation.plan import Kind, Plan, draw, draw_transactions
from nilometer.simulation.run import Exit, run

MINUTES = 0.5
SEEDS = (2, 4)


def plan(seed: int, *kinds: Kind) -> Plan:
    """What the seed draws, with transactional programs in any case."""
    drawn = draw(seed, MINUTES, kinds)
    transactions = draw_transactions(random.Random(f"{seed}/transactions"), share=1.0)
    assert transactions is not None
    return replace(drawn, transactions=transactions, settings={**drawn.settings, **transactions.settings})


def test_transactions_hold_what_they_promise_while_brokers_and_clients_die() -> None:
    done: Counter[str] = Counter()
    for seed in SEEDS:
        verdict = run(plan(seed, Kind.CRASH, Kind.CUT, Kind.CLIENT_CRASH))
        assert verdict.exit is Exit.CLEAN, (seed, verdict.findings)
        done += verdict.workloads
    for what in ("committed", "aborted", "left open", "zombies stopped", "refused verifications"):
        assert done[f"transactions, {what}"] > 0, (what, done)
