"""The shipped ``metrics`` job against rollups and alerts made in plain Python from the same measurements."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest

from nilometer.pipeline.run.samples import sample_records
from support.pipeline.expected_rollups import expected_rollups
from support.pipeline.runs import (
    AFTER_SAMPLES_MS,
    assert_reported,
    forget_last_commit,
    read_values,
    run_pipeline,
    send_values,
)

pytestmark = pytest.mark.spark

BROKEN = [
    b"no json",
    b'{"at": "2024-05-01T12:00:00Z", "service": "web"}',
    b'{"at": "soon", "service": "web", "metric": "latency_ms", "value": 1}',
]


def assert_rollups(spark, output, wanted):
    rows = spark.read.parquet(f"{output}/rollups").collect()
    found = {
        (row.minute.astimezone(), row.service, row.metric): (
            row["count"],
            row.mean,
            row.least,
            row.greatest,
            row.sum,
        )
        for row in rows
    }
    assert len(found) == len(rows)
    assert found.keys() == wanted.keys()
    for key, numbers in found.items():
        assert all(math.isclose(*pair) for pair in zip(numbers, wanted[key], strict=True)), key


@pytest.mark.long
def test_rollups_and_alerts_equal_those_made_in_plain_python(spark, topics, tmp_path):
    values = [one.value for one in sample_records("metrics", 12_000)]
    topic, alerts = send_values(topics, [*BROKEN, *values], timestamp=AFTER_SAMPLES_MS), topics.create(2)
    limited = {"maxOffsetsPerTrigger": "8000"}
    run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts, options=limited)
    rollups, wanted = expected_rollups(values)
    assert_rollups(spark, tmp_path, rollups)
    sent = [json.loads(value) for value in read_values(spark, topics, alerts)]
    assert Counter(one["id"] for one in sent) == Counter(wanted)
    assert {one["rule"] for one in sent} == {"slow", "failing"}
    assert all(one["value"] > one["limit"] for one in sent)
    forget_last_commit(tmp_path)
    run_pipeline(spark, topics, "metrics", topic, tmp_path, to_topic=alerts, options=limited)
    assert_rollups(spark, tmp_path, rollups)
    assert {json.loads(value)["id"] for value in read_values(spark, topics, alerts)} == wanted
    assert_reported(spark, "metrics", tmp_path)
