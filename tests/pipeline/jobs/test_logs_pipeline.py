"""The shipped ``logs`` job against a count in plain Python that shares nothing with it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.run import runner
from nilometer.pipeline.shipped import logs
from support.pipeline.log_lines import (
    HAND_PICKED,
    HOSTILE,
    assert_same,
    counted,
    expected,
    generated,
    send_lines,
)
from support.pipeline.runs import assert_reported

pytestmark = pytest.mark.spark

ACCESS_LOG = Path(__file__).resolve().parents[4] / "shared" / "data" / "access.log"


def run_logs(spark, topics, topic, output, connector="nilometer", **more):
    job = runner.Job(
        topic, str(output), topics.bootstrap, connector=connector, available_now=True, options=more
    )
    return runner.run(spark, logs, job)


@pytest.mark.long
@pytest.mark.quick
def test_results_equal_a_count_in_plain_python(spark, topics, tmp_path):
    lines = [*HAND_PICKED, *HOSTILE, *generated(4_000, seed=11)]
    topic = send_lines(topics, lines)
    run_logs(spark, topics, topic, tmp_path / "out")
    assert_same(counted(spark, tmp_path / "out"), expected(lines))


def test_lines_that_fit_no_format_are_kept_whole_and_findable(spark, topics, tmp_path):
    topic = send_lines(topics, HAND_PICKED)
    run_logs(spark, topics, topic, tmp_path / "out")
    kept = spark.read.parquet(str(tmp_path / "out" / "lines"))
    assert sorted(kept.select("line").toPandas()["line"]) == sorted(line.decode() for line in HAND_PICKED)
    unparsed = kept.where("format = 'unparsed'").select("partition", "offset", "line").collect()
    assert {HAND_PICKED[row.offset * 3 + row.partition].decode() for row in unparsed} == {
        row.line for row in unparsed
    }
    assert any(row.line == "a line of no format" for row in unparsed)


def test_both_connectors_give_the_same_tables(spark, topics, tmp_path):
    topic = send_lines(topics, [*HAND_PICKED, *generated(500, seed=12)])
    tables = []
    for connector in runner.CONNECTORS:
        output = tmp_path / connector
        last = run_logs(spark, topics, topic, output, connector)
        assert set(last.end_offsets) == {topic}
        rows = spark.read.parquet(str(output / "lines")).drop("batch", "fields").collect()
        results = {title: frame.collect() for title, frame in logs.results(spark, str(output)).items()}
        tables.append((Counter(rows), results))
    assert tables[0] == tables[1]


def test_a_batch_that_is_run_again_counts_once(spark, topics, tmp_path):
    """A crash between the tables' write and the checkpoint's commit: the batch comes again with its id."""
    lines = generated(300, seed=13)
    topic = send_lines(topics, lines)
    output = tmp_path / "out"
    run_logs(spark, topics, topic, output, maxOffsetsPerTrigger="100")
    commits = sorted((output / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) >= 3
    last = commits[-1]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    more = generated(50, seed=14)
    send_lines(topics, more, topic)
    run_logs(spark, topics, topic, output, maxOffsetsPerTrigger="100")
    assert_same(counted(spark, output), expected([*lines, *more]))


def test_the_event_time_watermark_follows_the_newest_line_and_late_lines_count(spark, topics, tmp_path):
    newest = b'::1 - - [01/Jan/2024:10:00:00 +0000] "GET /new HTTP/1.1" 200 5'
    late = b'::1 - - [01/Jan/2023:10:00:00 +0000] "GET /late HTTP/1.1" 200 5'
    topic = send_lines(topics, [newest], partitions=1)
    last = run_logs(spark, topics, topic, tmp_path / "out")
    assert last.event_time_watermark == datetime(2024, 1, 1, 10, 0, tzinfo=UTC) - logs.Settings().lateness
    send_lines(topics, [late], topic, partitions=1)
    last = run_logs(spark, topics, topic, tmp_path / "out")
    assert last.event_time_watermark == datetime(2024, 1, 1, 10, 0, tzinfo=UTC) - logs.Settings().lateness
    assert_same(counted(spark, tmp_path / "out"), expected([newest, late]))
    chart = logs.charts(spark, str(tmp_path / "out"))["Late lines per minute"].collect()
    assert [(row.minute.year, row.late) for row in chart] == [(2023, 1)]


def test_a_running_job_is_stopped_between_two_batches_and_goes_on_later(spark, topics, tmp_path):
    lines = generated(60, seed=15)
    topic = send_lines(topics, lines)
    batches: list[runner.Progress] = []
    job = runner.Job(topic, str(tmp_path / "out"), topics.bootstrap, seconds=1)
    last = runner.run(spark, logs, job, on_progress=batches.append, stopped=lambda: bool(batches))
    assert last == batches[-1]
    assert [stream for stream in spark.streams.active if stream.name == "logs"] == []
    more = generated(20, seed=16)
    send_lines(topics, more, topic)
    run_logs(spark, topics, topic, tmp_path / "out")
    assert_same(counted(spark, tmp_path / "out"), expected([*lines, *more]))


def test_tables_without_their_checkpoint_are_refused(spark, topics, tmp_path):
    (tmp_path / "lines" / "batch=00000000").mkdir(parents=True)
    with pytest.raises(PipelineError, match=r"has tables \(lines\) but no checkpoint"):
        run_logs(spark, topics, "any", tmp_path)


def test_a_real_access_log(spark, topics, tmp_path):
    """Ten thousand real lines where they are at hand; as many made ones elsewhere."""
    if ACCESS_LOG.exists():
        lines = ACCESS_LOG.read_bytes().splitlines()
        by_status = Counter(line.split(b" ")[8].decode() for line in lines)
    else:
        statuses = random.Random(1).choices((200, 301, 404, 500), k=10_000)
        lines = [
            b'::1 - - [01/Jan/2024:00:%02d:00 +0000] "GET /%d HTTP/1.1" %d 5' % (n % 60, n % 97, status)
            for n, status in enumerate(statuses)
        ]
        by_status = Counter(map(str, statuses))
    topic = send_lines(topics, lines)
    run_logs(spark, topics, topic, tmp_path / "out")
    found = counted(spark, tmp_path / "out")
    assert found.by_label == {("access", status): count for status, count in by_status.items()}
    assert found.lines == len(lines) == 10_000
    assert_reported(spark, "logs", tmp_path / "out")
