"""Pipelines on drawn histories, in random batches and with restarts: results and account are a model's.

Fewer examples than other properties, as each is a few runs on Spark: these take seconds, however few records
there are, so that most histories are drawn side by side. ``pytest --examples 50`` draws more of the others.
``tests/unit/pipeline/test_drawn_records.py`` has those of what needs no Spark.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline.drawn_records import Drawn
from support.pipeline.drawn_runs import (
    CASES,
    KILLS_MAX,
    History,
    check_history,
    check_kills,
    check_side_by_side,
)
from support.properties import examples

pytestmark = [pytest.mark.spark, pytest.mark.long]
SEED = "NILOMETER_CHAOS_SEED"
CAMPAIGN, CAMPAIGN_WIDTH = 10_000, 2_000
"""Histories of each pipeline, without a real kill, and how many are side by side."""
HISTORIES = 20
"""With kill -9, of each pipeline in a campaign: the start of a process costs more than the rest."""
each_pipeline = pytest.mark.parametrize("case", CASES, ids=str)
KILLED_IN_EACH_RUN = ("metrics", "changelog", "table-iceberg-upsert")
"""Windows, versions of rows, a table: what the others do in a batch is in one of these, and a case takes a
minute."""
each_killed = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if str(case) in KILLED_IN_EACH_RUN else pytest.mark.soak) for case in CASES],
    ids=str,
)


@each_pipeline
@given(st.data())
@examples(2)
def test_results_and_account_are_those_of_the_model(spark, topics, case, data):
    """Processes end within batches, without any tidying."""
    check_history(case, spark, topics, data.draw(case.histories()))


@each_pipeline
def test_many_histories_side_by_side(request, spark, topics, case):
    check_all(request, [seed_given()], lambda seed: check_side_by_side(case, spark, topics, seed))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@each_pipeline
def test_ten_thousand_histories_side_by_side(request, spark, topics, case):
    seeds = seeds_of(CAMPAIGN // CAMPAIGN_WIDTH)
    check_all(request, seeds, lambda seed: check_side_by_side(case, spark, topics, seed, CAMPAIGN_WIDTH))


def test_a_run_on_an_empty_topic_drains_nothing(spark, topics):
    [burst] = [case for case in CASES if str(case) == "burst"]
    parts = [{"": []}, {"": [Drawn(None)]}]
    check_history(burst, spark, topics, History(parts, 3, [None, None], repeated=False))


@pytest.mark.timeout(600)
@each_killed
def test_results_and_account_are_those_of_the_model_after_kill_nine(request, spark, topics, case):
    """A real process is killed within a batch, and another one goes on."""
    check_all(request, [seed_given()], lambda seed: check_kills(case, spark, topics, seed, 1))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@each_pipeline
def test_results_and_account_are_those_of_the_model_after_many_kills(request, spark, topics, case):
    """``NILOMETER_CHAOS_SEED=17 pytest tests/pipeline/jobs/test_drawn_histories.py -m soak -k many_kills``"""
    seeds = seeds_of(HISTORIES)
    check_all(request, seeds, lambda seed: check_kills(case, spark, topics, seed, KILLS_MAX))


def seed_given():
    return int(os.environ.get(SEED, "1"))


def seeds_of(count):
    first = random.SystemRandom().randrange(2**32)
    return [seed_given()] if SEED in os.environ else range(first, first + count)


def check_all(request, seeds, check):
    for seed in seeds:
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"again: {SEED}={seed} .venv/bin/pytest -m '' '{request.node.nodeid}'")
            raise
