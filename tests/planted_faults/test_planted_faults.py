"""The simulation finds what is planted in the product: a few each time, all of them in the long campaign.

The table in docs/simulation.md names for each fault the seed that found it:
``PYTHONPATH=tests python -m planted_faults.table`` makes it anew.
"""

from __future__ import annotations

import pytest

from nilometer.simulation.run import Exit, run
from planted_faults.catalogue import BY_NAME, FAULTS
from planted_faults.planting import PlantedFault, look_for, play
from planted_faults.table import lines_on_page

QUICK = (
    "acknowledge-what-is-written",
    "acknowledge-without-the-slowest",
    "answer-before-group-commit",
    "epochs-begin-late",
    "forget-commits",
    "keep-deleted-topics",
    "number-retries-anew",
    "shrink-without-waiting",
)
"""Found by their first seeds, in a second or two."""


def test_there_are_enough_and_the_page_names_just_these() -> None:
    assert len(FAULTS) == len(BY_NAME) >= 20
    known = lines_on_page()
    assert list(known) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        seed, checker = known[fault.name]
        assert seed < fault.seeds
        assert checker


@pytest.mark.parametrize("name", QUICK)
def test_planted_fault_is_found_by_the_seed_that_the_page_names(name: str) -> None:
    seed, _ = lines_on_page()[name]
    verdict = play(BY_NAME[name], seed)
    assert verdict.exit is not Exit.CLEAN, f"python -m planted_faults {name} --seed {seed}"
    assert verdict.findings


def test_without_a_planted_fault_the_same_plan_is_clean() -> None:
    fault = BY_NAME["acknowledge-without-the-slowest"]
    seed, _ = lines_on_page()[fault.name]
    assert run(fault.plan(seed)).findings == []


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_planted_fault_is_found_within_its_seeds(fault: PlantedFault) -> None:
    found = look_for(fault)
    assert found is not None, f"{fault.name} was not found within {fault.seeds} seeds"
    assert run(fault.plan(found.seed)).findings == [], "the plan fails without the fault, too"
