"""Two administrators, controllers in turn, brokers that fold at different times: settings in every order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nilometer.cluster.controller import configs
from nilometer.cluster.controller.configs import SettingsAfter
from nilometer.cluster.image import ClusterImage
from nilometer.simulation.model_check import settings as properties
from nilometer.simulation.model_check.explorer import Exploration
from nilometer.simulation.model_check.settings import (
    ALL_OR_NOTHING,
    HELD_BACK,
    SettingsBounds,
    SettingsWorld,
    settings_violation,
)
from support.simulation.model_check_tally import explore

EXHAUSTIVE = {
    "requests of both and a controller change, on a broker with settings of its own": SettingsBounds(
        restarts=0, foreign_entries=0, followers=(2,)
    ),
    "a broker without own settings restarts, and an entry comes that no broker can fold": SettingsBounds(
        controller_changes=0, followers=(1,)
    ),
}
LARGER = {
    "all of it": SettingsBounds(followers=(2,)),
    "two requests of each": SettingsBounds(requests=2, restarts=0, foreign_entries=0, followers=(2,)),
}


def explored(bounds: SettingsBounds) -> Exploration:
    seen = explore(SettingsWorld(bounds), judge=settings_violation)
    print(f"{bounds}: {seen.states:,} states, {seen.transitions:,} steps, depth {seen.depth}")
    return seen


@pytest.mark.parametrize("bounds", EXHAUSTIVE.values(), ids=EXHAUSTIVE.keys())
def test_every_state_keeps_every_property_of_settings(bounds: SettingsBounds) -> None:
    seen = explored(bounds)
    assert seen.violation is None, (seen.violation, seen.counterexample)
    assert seen.is_complete
    assert seen.states > 4_000


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bounds", LARGER.values(), ids=LARGER.keys())
def test_every_state_of_a_larger_world_keeps_every_property_of_settings(bounds: SettingsBounds) -> None:
    seen = explored(bounds)
    assert seen.violation is None, (seen.violation, seen.counterexample)
    assert seen.is_complete


# ── the model check finds what it is for ────────────────────────────────────────────────────────────
def judge_keys_one_by_one(patch: pytest.MonkeyPatch) -> None:
    def check_nothing(before: SettingsAfter, *_: object) -> SettingsAfter:
        return before

    patch.setattr(configs, "check_together", check_nothing)


def judge_resources_one_by_one(patch: pytest.MonkeyPatch) -> None:
    real = configs.check_together

    def forget_the_others(before: SettingsAfter, *rest: object) -> SettingsAfter:
        real(before, *rest)  # type: ignore[arg-type]
        return before

    patch.setattr(configs, "check_together", forget_the_others)


def accept_what_all_must_agree_on_for_one_broker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(configs, "_refuse_for_one_broker", lambda *_: None)


def keep_eligible_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(configs, "_forget_eligible_replicas", lambda *_: [])


def fold_entries_in_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClusterImage, "_roll_back", lambda image: image._undo.clear())


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "keys are judged one by one": (judge_keys_one_by_one, properties.APPLICABLE),
    "the resources of a request are judged one by one": (judge_resources_one_by_one, properties.APPLICABLE),
    "one broker may have a min.insync.replicas of its own": (
        accept_what_all_must_agree_on_for_one_broker,
        properties.ONE_MIN_ISR,
    ),
    "eligible replicas stay when min.insync.replicas is lowered": (keep_eligible_replicas, HELD_BACK),
    "an entry is folded in part": (fold_entries_in_part, ALL_OR_NOTHING),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_found(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, sentence = PLANTED[planted]
    plant(monkeypatch)
    seen = explored(SettingsBounds(followers=(2,)))
    assert seen.violation is not None
    assert seen.violation.sentence == sentence
    assert len(seen.counterexample) <= 6, seen.counterexample
