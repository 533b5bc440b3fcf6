"""Random stories of files, process and broker: each line written is in the topic once."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.ingest_story import Step, Story

OFTEN = ("write", "look", "take", "read", "turn")
NAMES = (
    *(OFTEN * 3),
    *("write_old", "half", "rename", "rename", "create", "copy", "copied", "truncate", "pack", "packed"),
    *("delete", "unmount", "mount", "broker", "checkpoint", "sleep", "kill", "start", "start", "run_once"),
)
steps = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 60)), max_size=60)
STORIES = 400
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)


def check(story: list[Step], named: bool, banner: bool) -> None:
    told = Story(named=named, banner=banner)
    told.play(story)
    lost, repeated = told.verdict()
    replay = json.dumps([named, banner, story], separators=(",", ":"))
    assert (lost, repeated) == ([], []), (
        f"lost {lost[:5]}, repeated {repeated[:5]}; replay: "
        f"INGEST_STORY='{replay}' pytest tests/client/test_ingest_model.py -k replay"
    )


@given(steps, st.booleans(), st.booleans())
@settings(max_examples=STORIES, derandomize=True, deadline=None, suppress_health_check=QUIET)
def test_each_line_once_in_every_story(story: list[Step], named: bool, banner: bool) -> None:
    check(story, named, banner)


@pytest.mark.soak
@given(steps, st.booleans(), st.booleans())
@settings(max_examples=STORIES * 100, deadline=None, suppress_health_check=QUIET)
def test_each_line_once_in_very_many_stories(story: list[Step], named: bool, banner: bool) -> None:
    check(story, named, banner)


def test_replay() -> None:
    """The story that the environment names, as a failure prints it."""
    told = os.environ.get("INGEST_STORY")
    if told is not None:
        named, banner, story = json.loads(told)
        check([(name, argument) for name, argument in story], named, banner)
