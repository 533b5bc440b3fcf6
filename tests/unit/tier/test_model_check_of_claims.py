"""Every state of two small clusters that use one store keeps every property; and what is planted in the rules
is found, by a shortest path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.tier_claims import (
    HELD,
    ONCE,
    OWN,
    STOPS,
    ClaimBounds,
    ClaimWorld,
    claim_violation,
)
from nilometer.tier import plan
from nilometer.tier.chain import Chain, Deposed
from nilometer.tier.format import Manifest, RemoteSegment
from nilometer.tier.lineage import LogLineage
from support.simulation.model_check_tally import explore

STATES_MAX = 50_000
"""With some of what is planted there is no end of states."""
CLAIMED, UNCLAIMED = ClaimBounds(values=3, elections=0), ClaimBounds(values=2, claims=(0, 0))
LARGER = (
    ClaimBounds(values=2),
    ClaimBounds(values=2, claims=(1, 0)),
    ClaimBounds(values=3, claims=(0, 0)),
)
LARGEST = (ClaimBounds(values=2, elections=2), ClaimBounds(values=2, elections=2, claims=(0, 0)))


def check(bounds: ClaimBounds, states_max: int | None = None) -> Exploration:
    return explore(ClaimWorld(bounds), judge=claim_violation, states_max=states_max)


def assert_complete(bounds: ClaimBounds) -> None:
    seen = check(bounds)
    assert seen.violation is None, (seen.violation, [step for step, _ in seen.counterexample])
    assert seen.is_complete


@pytest.mark.parametrize("bounds", [CLAIMED, UNCLAIMED], ids=["claimed", "unclaimed"])
def test_every_state_keeps_every_property(bounds: ClaimBounds) -> None:
    assert_complete(bounds)


@pytest.mark.thorough
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGER)
def test_every_state_of_a_larger_world_keeps_every_property(bounds: ClaimBounds) -> None:
    assert_complete(bounds)


@pytest.mark.soak
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGEST)
def test_every_state_of_the_largest_worlds_keeps_every_property(bounds: ClaimBounds) -> None:
    assert_complete(bounds)


# What is planted.

Patch = Callable[[pytest.MonkeyPatch], None]


def look_at_no_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chain, "_check_claim", lambda self, last: None)
    patch.setattr(Manifest, "rank", property(lambda self: (0, self.leader_epoch)))


def compare_no_crc(patch: pytest.MonkeyPatch) -> None:
    prove = LogLineage.prove
    patch.setattr(LogLineage, "prove", lambda self, segment, crc: prove(self, segment, None))


def read_what_is_claimed_by_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chain, "check_may_read", lambda self: None)


def copy_nothing_again(patch: pytest.MonkeyPatch) -> None:
    def nothing(manifest: Manifest, log: plan.LogView) -> tuple[RemoteSegment, ...]:
        return ()

    patch.setattr(plan, "still_local", nothing)


def give_up_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "still_local", lambda manifest, log: manifest.segments)


def follow_another_writer_of_the_epoch(patch: pytest.MonkeyPatch) -> None:
    def check_may_write(self: Chain, leader_epoch: int) -> None:
        if (last := self.last) is not None and last.rank > (self._claim, leader_epoch):
            raise Deposed

    patch.setattr(Chain, "check_may_write", check_may_write)


PLANTED: dict[str, tuple[Patch, ClaimBounds, str]] = {
    "claims are not looked at": (look_at_no_claim, ClaimBounds(values=2), STOPS),
    "lineages are not compared": (compare_no_crc, UNCLAIMED, ONCE),
    "what others have claimed is read": (read_what_is_claimed_by_others, ClaimBounds(values=2), OWN),
    "what a former cluster copied stays": (copy_nothing_again, CLAIMED, ONCE),
    "all that a former cluster copied is given up": (give_up_all, ClaimBounds(values=2, elections=0), HELD),
    "two clusters write under one epoch": (follow_another_writer_of_the_epoch, UNCLAIMED, OWN),
}
EXPENSIVE = ("two clusters write under one epoch", "what others have claimed is read")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] * (name in EXPENSIVE)) for name in PLANTED]
)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, bounds, sentence = PLANTED[name]
    plant(monkeypatch)
    seen = check(bounds, STATES_MAX)
    assert seen.violation is not None
    assert seen.violation.sentence == sentence
    assert seen.counterexample
