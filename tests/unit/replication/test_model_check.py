"""The model check of the replication core, within the bounds that every test run can afford.

Each world is gone through to its end, or as far as its number of states allows: two by `make test`, the
others by `make test-all`. `make soak` goes further.
"""

from __future__ import annotations

import pytest

from nilometer.replication.follower import TruncationRule
from nilometer.simulation.model_check.properties import NEVER_LOST, loss, violation
from nilometer.simulation.model_check.tables import Bounds
from nilometer.simulation.model_check.world import World
from support.simulation.model_check_tally import explore

CHEAP = {
    "checkpoints lag": Bounds(
        values=1, leader_epochs=2, crashes=2, lag_expiries=0, message_faults=0, checkpoints_lag=True
    ),
    "a deposed controller writes": Bounds(
        values=1, crashes=0, message_faults=0, controller_changes=1, keeps_delayed_messages=False
    ),
}
THOROUGH = {
    "leaders change, followers lag": Bounds(crashes=0, keeps_delayed_messages=False),
    "late messages may do harm": Bounds(values=1, crashes=0, message_faults=1),
    "processes bounce": Bounds(lag_expiries=0, message_faults=0, keeps_delayed_messages=False),
    "processes bounce, followers lag": Bounds(
        leader_epochs=2, message_faults=0, keeps_delayed_messages=False
    ),
    "processes bounce, messages are repeated": Bounds(
        leader_epochs=2, lag_expiries=0, keeps_delayed_messages=False
    ),
    "tails are lost": Bounds(
        min_insync_replicas=2,
        values=1,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        keeps_delayed_messages=False,
    ),
    "three replicas": Bounds(
        brokers=3,
        min_insync_replicas=2,
        values=1,
        leader_epochs=2,
        crashes=0,
        message_faults=0,
        keeps_delayed_messages=False,
    ),
    "three replicas, one of which bounces": Bounds(
        brokers=3,
        min_insync_replicas=2,
        values=1,
        leader_epochs=2,
        lag_expiries=0,
        message_faults=0,
        fetches_are_atomic=True,
        keeps_delayed_messages=False,
    ),
}
AS_FAR_AS_TIME_ALLOWS = {
    "two replicas": Bounds(crashes=2, checkpoints_lag=True),
    "two replicas that lose tails": Bounds(min_insync_replicas=2, crashes=2),
    "three replicas": Bounds(brokers=3, crashes=2, keeps_delayed_messages=False),
    "three replicas that lose tails": Bounds(
        brokers=3, min_insync_replicas=2, values=3, crashes=3, lag_expiries=2, fetches_are_atomic=True
    ),
    "three replicas and a deposed controller": Bounds(
        brokers=3, min_insync_replicas=2, values=1, controller_changes=1, fetches_are_atomic=True
    ),
}


@pytest.mark.parametrize(
    "bounds",
    [
        *(pytest.param(bounds, id=name) for name, bounds in CHEAP.items()),
        *(
            pytest.param(bounds, id=name, marks=[pytest.mark.thorough, pytest.mark.long])
            for name, bounds in THOROUGH.items()
        ),
    ],
)
def test_every_state_keeps_every_property(bounds: Bounds) -> None:
    seen = explore(World(bounds), judge=violation)
    print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} steps, depth {seen.depth}")
    assert seen.violation is None, seen.violation
    assert seen.is_complete


@pytest.mark.thorough
def test_three_replicas_that_crash_and_lose_tails_as_far_as_time_allows() -> None:
    bounds = Bounds(
        brokers=3,
        min_insync_replicas=2,
        values=1,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        fetches_are_atomic=True,
        keeps_delayed_messages=False,
    )
    seen = explore(World(bounds), judge=violation, states_max=80_000)
    print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} steps, depth {seen.depth}")
    assert seen.violation is None, seen.violation
    assert seen.depth >= 7


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", AS_FAR_AS_TIME_ALLOWS.values(), ids=AS_FAR_AS_TIME_ALLOWS.keys())
def test_larger_worlds_as_far_as_time_allows(bounds: Bounds) -> None:
    seen = explore(World(bounds), judge=violation, states_max=4_000_000)
    print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} steps, depth {seen.depth}")
    assert seen.violation is None, seen.violation


def test_r_12_truncation_to_the_high_watermark_loses_a_record() -> None:
    """Left to itself, the model check finds the data loss of R-12, and no shorter path exists."""
    bounds = Bounds(values=1, leader_epochs=2, crashes=2, lag_expiries=0, message_faults=0)
    by_epoch = explore(World(bounds), judge=loss)
    assert by_epoch.violation is None
    assert by_epoch.is_complete
    old = Bounds(
        values=1,
        leader_epochs=2,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        rule=TruncationRule.TO_HIGH_WATERMARK,
    )
    found = explore(World(old), judge=loss)
    assert found.violation is not None
    assert found.violation.sentence == NEVER_LOST
    assert [step[0] for step, _ in found.counterexample] == [
        "produce",
        "serve",
        "take",
        "crash",
        "serve",
        "restart",
        "expire",
        "learn",
    ]


def test_a_restart_that_cannot_prove_what_it_kept_must_not_cost_the_others_their_records() -> None:
    """Why a broker must know that its machine stayed up.

    If the death of a mere process costs a replica its place, one lost machine beside it is one too many.
    """
    bounds = Bounds(
        min_insync_replicas=2,
        values=1,
        crashes=2,
        lag_expiries=0,
        message_faults=0,
        keeps_delayed_messages=False,
        unclean_restarts_forfeit=True,
    )
    found = explore(World(bounds), judge=violation)
    assert found.violation is not None
    assert {"restart-unproven", "restart"} <= {step[0] for step, _ in found.counterexample}
