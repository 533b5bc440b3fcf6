"""The simulation finds what is planted in the product: a few each time, all of them in the long campaign.

The table in docs/simulation.md names for each fault the seed that found it:
``PYTHONPATH=tests/simulation python -m planted_faults.table`` writes it again.
"""

from __future__ import annotations

import pytest
from planted_faults.catalogue import BY_NAME, FAULTS
from planted_faults.planting import PlantedFault, look_for, play_without
from planted_faults.table import lines_on_page

QUICK = ("acknowledge-what-is-written", "epochs-begin-late", "renumber-retries")
"""Found by almost every seed, in less than a second."""
THOROUGH = (
    "ask-the-system-for-the-time",
    "fetch-in-the-order-of-a-set",
    "acknowledge-without-the-slowest",
    "answer-before-group-commit",
    "forget-commits",
    "keep-deleted-topics",
    "leave-out-the-aborted-index",
    "share-read-no-batches",
)
"""Found by almost every seed, in a second or two."""


def test_there_are_enough_and_the_page_names_just_these() -> None:
    assert len(FAULTS) >= 20
    assert len(BY_NAME) == len(FAULTS)
    known = lines_on_page()
    assert list(known) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        seed, checker = known[fault.name]
        assert seed < fault.seeds
        assert checker


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.thorough) for name in THOROUGH)]
)
def test_planted_fault_is_found_within_its_seeds(name: str) -> None:
    found = look_for(BY_NAME[name])
    assert found is not None, f"{name} was not found within {BY_NAME[name].seeds} seeds"
    assert found.verdict.findings


def test_without_a_planted_fault_the_same_plan_is_clean() -> None:
    fault = BY_NAME["acknowledge-without-the-slowest"]
    seed, _ = lines_on_page()[fault.name]
    assert play_without(fault, seed).findings == []


@pytest.mark.soak
@pytest.mark.interpreted
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_planted_fault_is_found_within_its_seeds(fault: PlantedFault) -> None:
    found = look_for(fault)
    assert found is not None, f"{fault.name} was not found within {fault.seeds} seeds"
    assert play_without(fault, found.seed).findings == [], "the plan fails without the fault, too"
