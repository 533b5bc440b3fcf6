"""Every state of a small share partition with members, former leaders, late and lost writes keeps every
property; and what is planted in the code is found, by a shortest path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nilometer.share.share_partition import SharePartition
from nilometer.share.state_records import DeliveryState
from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.share import (
    DELIVERY_LIMIT,
    DONE_ONCE,
    HELD_IS_TAKEN,
    LOCKED_ONCE,
    VALID_ENDS,
    ShareBounds,
    ShareWorld,
    share_violation,
)
from support.simulation.model_check_tally import explore

SMALL = ShareBounds(elections=0)
WITH_ELECTION = ShareBounds(members=1, elections=1, losses=1, expiries=0)
LARGER = (
    ShareBounds(offsets=2, elections=0, losses=0, expiries=1),
    ShareBounds(elections=1, losses=0, expiries=1),
)
LARGEST = (
    ShareBounds(offsets=2, elections=0, expiries=1),
    ShareBounds(elections=1, losses=0),
    ShareBounds(elections=1, expiries=1),
)


def check(bounds: ShareBounds) -> Exploration:
    return explore(ShareWorld(bounds), judge=share_violation)


def assert_complete(bounds: ShareBounds) -> None:
    seen = check(bounds)
    assert seen.violation is None, (seen.violation, [step for step, _ in seen.counterexample])
    assert seen.is_complete


@pytest.mark.parametrize("bounds", [SMALL, WITH_ELECTION], ids=["members", "election"])
def test_every_state_keeps_every_property(bounds: ShareBounds) -> None:
    assert_complete(bounds)


@pytest.mark.thorough
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGER)
def test_every_state_of_a_larger_world_keeps_every_property(bounds: ShareBounds) -> None:
    assert_complete(bounds)


@pytest.mark.soak
@pytest.mark.interpreted
@pytest.mark.parametrize("bounds", LARGEST)
def test_every_state_of_the_largest_worlds_keeps_every_property(bounds: ShareBounds) -> None:
    assert_complete(bounds)


def replaced(name: str, by: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(SharePartition, name, by)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], ShareBounds, str]] = {
    "any member acknowledges": (replaced("_holds", lambda *_: True), SMALL, HELD_IS_TAKEN),
    "what is released is buried": (
        replaced("_released", lambda *_: DeliveryState.ARCHIVED),
        SMALL,
        VALID_ENDS,
    ),
    "what is released stays, whatever the limit": (
        replaced("_released", lambda *_: DeliveryState.AVAILABLE),
        ShareBounds(elections=0, losses=0, expiries=3),
        DELIVERY_LIMIT,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, bounds, sentence = PLANTED[name]
    plant(monkeypatch)
    seen = check(bounds)
    assert seen.violation is not None
    assert seen.violation.sentence == sentence
    assert seen.counterexample


def test_a_leader_that_does_not_take_the_state_over_gives_out_what_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SharePartition, "_load", lambda *_: None)
    bounds = ShareBounds(offsets=2, members=1, elections=1, losses=0, expiries=0)
    seen = check(bounds)
    assert seen.violation is not None
    assert seen.violation.sentence == DONE_ONCE


def test_a_record_whose_lock_is_ignored_goes_to_two_members(monkeypatch: pytest.MonkeyPatch) -> None:
    release = SharePartition.on_time

    def at_once(self: SharePartition, member_id: str, *rest: Any, **named: Any) -> Any:
        release(self, named["now_ms"] + self.settings.record_lock_ms)
        return acquire(self, member_id, *rest, **named)

    acquire = SharePartition.acquire
    monkeypatch.setattr(SharePartition, "acquire", at_once)
    monkeypatch.setattr(SharePartition, "next_fetch_offset", lambda self: self.start_offset)
    seen = check(ShareBounds(elections=0, losses=0, expiries=0, limit=3))
    assert seen.violation is not None
    assert seen.violation.sentence == LOCKED_ONCE
