"""The replication core together with the controller that decides in production, in every order of events."""

from __future__ import annotations

import pytest

from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.processes import ClusterController
from nilometer.simulation.model_check.properties import violation
from nilometer.simulation.model_check.tables import Bounds
from nilometer.simulation.model_check.world import World
from support.simulation.model_check_tally import explore

EXHAUSTIVE = {
    "processes bounce, followers lag": Bounds(
        values=1, leader_epochs=4, message_faults=0, keeps_delayed_messages=False
    ),
    "two records": Bounds(leader_epochs=4, lag_expiries=0, message_faults=0, keeps_delayed_messages=False),
    "tails are lost": Bounds(
        min_insync_replicas=2,
        values=1,
        leader_epochs=4,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        keeps_delayed_messages=False,
    ),
    "three replicas, one of which loses its tail": Bounds(
        brokers=3,
        min_insync_replicas=2,
        values=1,
        lag_expiries=0,
        message_faults=0,
        fetches_are_atomic=True,
        keeps_delayed_messages=False,
    ),
}
LARGER = {
    "two replicas": Bounds(leader_epochs=5, crashes=2),
    "two replicas that lose tails": Bounds(min_insync_replicas=2, leader_epochs=5, crashes=3),
    "three replicas": Bounds(
        brokers=3, min_insync_replicas=2, leader_epochs=5, crashes=3, fetches_are_atomic=True
    ),
}


def explored(bounds: Bounds, states_max: int | None = None) -> Exploration:
    world = World(bounds, ClusterController(bounds.brokers, bounds.min_insync_replicas))
    seen = explore(world, judge=violation, states_max=states_max)
    print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} steps, depth {seen.depth}")
    return seen


@pytest.mark.parametrize("bounds", EXHAUSTIVE.values(), ids=EXHAUSTIVE.keys())
def test_every_state_keeps_every_property_under_the_controller(bounds: Bounds) -> None:
    seen = explored(bounds)
    assert seen.violation is None, seen.violation
    assert seen.is_complete


@pytest.mark.thorough
def test_three_replicas_under_the_controller_as_far_as_time_allows() -> None:
    bounds = Bounds(
        brokers=3,
        min_insync_replicas=2,
        values=1,
        leader_epochs=4,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        fetches_are_atomic=True,
        keeps_delayed_messages=False,
    )
    seen = explored(bounds, states_max=60_000)
    assert seen.violation is None, seen.violation
    assert seen.depth >= 9


def test_without_proof_of_a_whole_log_the_controller_cannot_save_a_record() -> None:
    """Not a fault of the controller: it is why brokers keep a marker of the incarnation that ended."""
    bounds = Bounds(
        min_insync_replicas=2,
        values=1,
        leader_epochs=4,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        keeps_delayed_messages=False,
        unclean_restarts_forfeit=True,
    )
    seen = explored(bounds)
    assert seen.violation is not None
    assert "restart-unproven" in {step[0] for step, _ in seen.counterexample}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LARGER.values(), ids=LARGER.keys())
def test_larger_worlds_under_the_controller(bounds: Bounds) -> None:
    seen = explored(bounds, states_max=3_000_000)
    assert seen.violation is None, seen.violation
