"""Pipelines on drawn histories, in random batches and with restarts: results and account are a model's.

Fewer examples than other properties, as each is a few runs on Spark; ``pytest --examples 50`` draws more.
``tests/unit/pipeline/test_drawn_records.py`` has those of what needs no Spark.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline.drawn_records import Drawn
from support.pipeline.drawn_runs import CASES, History, check_history, check_kills
from support.properties import examples

pytestmark = [pytest.mark.spark, pytest.mark.long]
each_pipeline = pytest.mark.parametrize("case", CASES, ids=str)


@each_pipeline
@given(st.data())
@examples(3)
def test_results_and_account_are_those_of_the_model(spark, topics, case, data):
    """Processes end within batches, without any tidying."""
    check_history(case, spark, topics, data.draw(case.histories()))


def test_a_run_on_an_empty_topic_drains_nothing(spark, topics):
    [burst] = [case for case in CASES if str(case) == "burst"]
    parts = [{"": []}, {"": [Drawn(None)]}]
    check_history(burst, spark, topics, History(parts, 3, [None, None], repeated=False))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@each_pipeline
@given(st.data())
@examples(2)
def test_results_and_account_are_those_of_the_model_after_kill_nine(spark, topics, case, data):
    """Real processes are killed when a batch has written a part of what it writes.

    The first example is the simplest one, the second is drawn.
    """
    part = data.draw(case.parts(1, records_min=10))[0]
    moments = data.draw(st.lists(st.sampled_from(case.moments), min_size=1, max_size=3))
    check_kills(case, spark, topics, part, moments)
