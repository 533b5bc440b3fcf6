"""Whole clusters under faults, by seed; and that a seed determines everything. That the judges can say no,
the planted faults show.

``nilometer simulate --seed N --minutes M`` plays one of these again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nilometer.cli.simulate import minimise
from nilometer.simulation.checkers.running_brokers import LeaderInvariants
from nilometer.simulation.plan import Kind, draw
from nilometer.simulation.run import Exit, run

MINUTES = 0.4
QUICK = (6, 16, 101)
FOUND_BEFORE = (3, 11, 13)
"""Seeds whose like showed a fault in the product once, as 6 and 16 did; see docs/simulation.md."""


@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (102, *FOUND_BEFORE))]
)
def test_a_cluster_survives_what_it_promises_to_survive(seed: int) -> None:
    verdict = run(draw(seed, MINUTES))
    assert verdict.findings == [], f"nilometer simulate --seed {seed} --minutes {MINUTES}"
    assert verdict.exit is Exit.CLEAN
    assert verdict.acknowledged > 10
    assert verdict.read > verdict.acknowledged


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "seed"),
    [(Kind.SESSION, 2), (Kind.SIGNAL, 2), (Kind.STORE_UNSURE, 2), (Kind.LOSS, 2)],
)
def test_faults_of_one_kind_alone_are_survived(kind: Kind, seed: int) -> None:
    verdict = run(draw(seed, MINUTES, [kind]))
    assert verdict.findings == [], (
        f"nilometer simulate --seed {seed} --minutes {MINUTES} --faults {kind.value}"
    )
    assert verdict.faults[kind] > 0


@pytest.mark.thorough
def test_damage_at_rest_is_found_and_repaired() -> None:
    lines: list[str] = []
    assert run(draw(2, 1.0, [Kind.DAMAGE]), sink=lines.append).exit is Exit.CLEAN
    assert any(" flips" in line for line in lines)
    assert any(line.endswith("is repaired") for line in lines)


def test_a_judge_that_fails_leaves_no_clean_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LeaderInvariants, damaged: object) -> None:
        raise AttributeError("a mistake in the judge")

    monkeypatch.setattr(LeaderInvariants, "look", fail)
    with pytest.raises(AttributeError, match="a mistake in the judge"):
        run(draw(1, 0.1))


def _simulate(trace: Path, hash_seed: str) -> str:
    options = f"simulate --seed 5 --minutes 0.3 --trace {trace}".split()
    done = subprocess.run(
        [sys.executable, "-m", "nilometer.cli", *options],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.partition("; trace ")[2].split()[0]


@pytest.mark.thorough
def test_same_seed_same_trace__in_any_process_and_hash_seed(tmp_path: Path) -> None:
    digests = {_simulate(tmp_path / hash_seed, hash_seed) for hash_seed in ("1", "4242")}
    here = {run(draw(5, 0.3)).digest for _ in range(2)}
    assert digests == here and len(here) == 1
    assert (tmp_path / "1").read_bytes() == (tmp_path / "4242").read_bytes()


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert draw(7, 2.0) == draw(7, 2.0)
    assert draw(7, 2.0) != draw(8, 2.0)


def test_no_plan_asks_for_more_than_is_promised() -> None:
    for seed in range(300):
        plan = draw(seed, 1.0)
        if Kind.POWER in plan.kinds:
            assert plan.machines_lost_max >= 1
            assert not plan.one_machine or plan.machines_lost_max == plan.brokers


def test_minimising_keeps_what_it_takes() -> None:
    few, asked = minimise(range(20), lambda numbers: {3, 11} <= set(numbers))
    assert few == [3, 11]
    assert asked <= 40
