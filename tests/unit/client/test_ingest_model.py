"""Random scenarios of files, process and broker: each line written is in the topic once."""

from __future__ import annotations

import json
import os
import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from nilometer.client.ingest.matching import TELLING_BYTES
from support.ingest import ingest_scenario
from support.ingest.ingest_scenario import IngestScenario, Step
from support.properties import examples

OFTEN = ("write", "look", "take", "read", "turn")
NAMES = (
    *(OFTEN * 3),
    *("write_old", "half", "rename", "rename", "create", "copy", "copied", "truncate", "pack", "packed"),
    *("delete", "unmount", "mount", "broker", "checkpoint", "sleep", "kill", "start", "start", "run_once"),
)
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 60)), max_size=80)
SCENARIOS = 300
SEEDS = 800
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)


def check(steps: list[Step], named: bool, banner: bool) -> None:
    scenario = IngestScenario(named=named, banner=banner)
    scenario.play(steps)
    lost, repeated = scenario.verdict()
    replay = json.dumps([named, banner, ingest_scenario.LINE_BYTES, steps], separators=(",", ":"))
    assert (lost, repeated) == ([], []), (
        f"lost {lost[:5]}, repeated {repeated[:5]}; replay: "
        f"INGEST_SCENARIO='{replay}' pytest tests/unit/client/test_ingest_model.py -k replay"
    )


@given(steps, st.booleans(), st.booleans())
@examples(SCENARIOS, suppress_health_check=QUIET)
def test_each_line_once_in_every_scenario(steps: list[Step], named: bool, banner: bool) -> None:
    check(steps, named, banner)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS // 4))
def test_each_line_once_in_long_scenarios(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer ones than Hypothesis likes to make, of files of which each line tells whose it is."""
    monkeypatch.setattr(ingest_scenario, "LINE_BYTES", TELLING_BYTES)
    for seed in range(first, first + SEEDS // 4):
        chance = random.Random(seed)
        steps = [(chance.choice(NAMES), chance.randrange(61)) for _ in range(chance.choice((10, 20, 40, 80)))]
        check(steps, named=chance.random() < 0.5, banner=False)


@pytest.mark.soak
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 60)), min_size=10, max_size=80), st.booleans()
)
@examples(SCENARIOS * 2, suppress_health_check=QUIET)
def test_each_line_once_in_very_many_scenarios(steps: list[Step], named: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest_scenario, "LINE_BYTES", TELLING_BYTES)
        check(steps, named, banner=False)


FOUND = {
    "a deleted file whose empty beginning was taken for a copy": (
        False,
        False,
        1024,
        "look 0, copy 0, turn 0, write 0, truncate 0, look 0, delete 1, unmount 0, look 0, take 0",
    ),
    "a source that took the compressed file of another one with the same content": (
        False,
        True,
        300,
        "rename 1, rename 1, pack 0, look 0, packed 0, turn 0, look 0, take 0, pack 0",
    ),
}
"""Scenarios in which a line was lost or repeated once."""


@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_each_line_once_where_it_was_not(
    found: tuple[bool, bool, int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named, banner, line_bytes, steps = found
    monkeypatch.setattr(ingest_scenario, "LINE_BYTES", line_bytes)
    each = (step.split() for step in steps.split(", "))
    check([(name, int(argument)) for name, argument in each], named, banner)


def test_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario that the environment names, as a failure prints it."""
    steps = os.environ.get("INGEST_SCENARIO")
    if steps is not None:
        named, banner, line_bytes, steps = json.loads(steps)
        monkeypatch.setattr(ingest_scenario, "LINE_BYTES", line_bytes)
        check([(name, argument) for name, argument in steps], named, banner)
