"""The shipped ``burst`` job: every record drained once, at the rate that was set; the lag comes down."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nilometer.pipeline.run import runner
from nilometer.pipeline.run.samples import sample_records
from nilometer.pipeline.shipped import burst
from support.pipeline.runs import assert_reported, send_values

pytestmark = pytest.mark.spark


def test_a_burst_is_drained_at_the_set_rate_and_the_lag_comes_down_to_nothing(
    spark, topics, tmp_path, monkeypatch
):
    pauses = []
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append)
    monkeypatch.setattr(burst, "time", clock)
    values = [one.value for one in sample_records("burst", 10_000)]
    topic = send_values(topics, values, partitions=2)
    job = runner.Job(
        topic,
        str(tmp_path),
        topics.bootstrap,
        available_now=True,
        options={"maxOffsetsPerTrigger": "2500"},
    )
    seen: list[runner.Progress] = []
    runner.run(spark, burst, job, on_progress=seen.append)
    assert [one.rows for one in seen] == [2_500] * 4
    assert [one.lag for one in seen] == [7_500, 5_000, 2_500, 0]
    assert pauses == [burst.Settings().period.total_seconds()] * 4
    rows = spark.read.parquet(f"{tmp_path}/drained").collect()
    assert sum(row.records for row in rows) == 10_000
    assert sum(row.bytes for row in rows) == sum(map(len, values))
    spans = {(row.partition, row.first_offset, row.last_offset) for row in rows}
    assert spans == {(part, n * 1_250, n * 1_250 + 1_249) for part in (0, 1) for n in range(4)}
    assert_reported(spark, "burst", tmp_path)
