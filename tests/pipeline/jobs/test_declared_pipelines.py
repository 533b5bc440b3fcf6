"""Shipped pipelines as Spark Declarative Pipelines: the tables that come of them, and their faults."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition

from nilometer.cli.pipelines.pipeline_commands import pipeline
from nilometer.cli.pipelines.spark_commands import spark as spark_group
from nilometer.pipeline.declared.project import CONF, DECLARED, SPEC_NAME, write_project
from nilometer.pipeline.run.samples import sample_records
from support.pipeline.expected_rollups import expected_rollups
from support.pipeline.runs import AFTER_SAMPLES_MS, run_pipeline, send_values
from support.ports import free_ports

pytestmark = pytest.mark.spark


def run_project(folder: Path) -> None:
    """Through the command, in a process of its own: this one's Spark stays out of it."""
    command = [sys.executable, "-m", "nilometer.cli", "spark", "pipelines", "run", "--spec", SPEC_NAME]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=840, check=False)
    log = folder / "spark.log"
    said = done.stdout + done.stderr + (log.read_text()[-4_000:] if log.exists() else "")
    assert done.returncode == 0, said
    assert "Run is COMPLETED" in said


def set_up_for_one_run(folder: Path) -> None:
    """It needs no catalog that outlives it, and nothing that Java compiles thoroughly: half the time."""
    settings = folder / CONF / "spark-defaults.conf"
    kept = [line for line in settings.read_text().splitlines() if "catalogImplementation" not in line]
    kept.append("spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    settings.write_text("\n".join(kept))


def table(folder: Path, name: str):
    return pq.read_table(folder / "spark-warehouse" / name).to_pylist()


def utc(minute) -> datetime:
    """Spark's timestamps are UTC in Parquet, where they are written without a zone."""
    return minute.to_pydatetime().replace(tzinfo=UTC)


def values_in(topics, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": "unused"})
    found = []
    try:
        for partition in consumer.list_topics(topic, 30).topics[topic].partitions:
            end = topics.end(topic, partition)
            consumer.assign([TopicPartition(topic, partition, 0)])
            values = [message.value() for message in consumer.consume(end, 30)] if end else []
            assert len(values) == end
            found += values
    finally:
        consumer.close()
    return found


@pytest.mark.long
def test_tables_view_and_alerts_equal_those_made_in_plain_python(topics, tmp_path):
    values = [one.value for one in sample_records("metrics", 12_000)]
    topic, alerts = send_values(topics, [b"no json", *values], timestamp=AFTER_SAMPLES_MS), topics.create(2)
    write_project("metrics", tmp_path / "p", topics.bootstrap, {"measurements": topic, "alerts": alerts})
    set_up_for_one_run(tmp_path / "p")
    run_project(tmp_path / "p")
    wanted, wanted_alerts = expected_rollups(values)
    rows = table(tmp_path / "p", "rollups")
    found = {(utc(one["minute"]), one["service"], one["metric"]): one for one in rows}
    assert len(found) == len(rows)
    assert found.keys() == wanted.keys()
    for key, numbers in wanted.items():
        ours = [found[key][column] for column in ("count", "mean", "least", "greatest", "sum")]
        assert all(math.isclose(*pair) for pair in zip(ours, numbers, strict=True)), key
    by_service: Counter[tuple[str, str]] = Counter()
    for (_, service, metric), (count, *_) in wanted.items():
        by_service[service, metric] += int(count)
    assert {(one["service"], one["metric"]): one["count"] for one in table(tmp_path / "p", "services")} == (
        by_service
    )
    assert {json.loads(value)["id"] for value in values_in(topics, alerts)} == wanted_alerts != set()


def rows_of(folder: Path, name: str) -> Counter[str]:
    """A table that one of the shipped jobs or a declared pipeline has written, in any order."""
    rows = pq.read_table(folder / name).to_pylist()
    return Counter(
        str(sorted((key, str(value)) for key, value in row.items() if key != "batch")) for row in rows
    )


def summed(folder: Path, name: str, number: str) -> Counter[str]:
    """A table of parts, added up."""
    total: Counter[str] = Counter()
    for row in pq.read_table(folder / name).to_pylist():
        key = sorted((key, str(value)) for key, value in row.items() if key not in (number, "batch"))
        total[str(key)] += row[number]
    return total


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize(
    ("name", "rows", "parts"),
    [
        ("logs", {"lines": "lines"}, ("counts", "lines")),
        ("activity", {"sessions": "sessions"}, ("page_views", "views")),
    ],
)
def test_a_second_run_goes_on_and_the_tables_are_those_of_the_shipped_job(
    spark, topics, tmp_path, name, rows, parts
):
    values = [one.value for one in sample_records(name, 3_000)]
    topic = send_values(topics, values[:1_700], timestamp=AFTER_SAMPLES_MS)
    project, job = tmp_path / name, tmp_path / "job"
    write_project(name, project, topics.bootstrap, {"access" if name == "activity" else name: topic})
    run_project(project)
    send_values(topics, values[1_700:], topic, timestamp=AFTER_SAMPLES_MS)
    run_project(project)
    run_pipeline(spark, topics, name, topic, job)
    for declared, shipped in rows.items():
        assert rows_of(project / "spark-warehouse", declared) == rows_of(job, shipped) != Counter()
    assert summed(project / "spark-warehouse", *parts) == summed(job, *parts) != Counter()


# --- what is written, and what is refused


@pytest.mark.parametrize("name", DECLARED)
def test_a_project_names_its_brokers_and_topics_where_they_can_be_changed(tmp_path, name):
    folder = tmp_path / "project"
    arguments = ["declare", name, str(folder), "--topic", "in", "--bootstrap-server", "127.0.0.1:1"]
    result = CliRunner().invoke(pipeline, arguments)
    assert result.exit_code == 0, result.output
    spec = yaml.safe_load((folder / SPEC_NAME).read_text())
    assert spec["name"] == name
    assert spec["configuration"]["spark.nilometer.bootstrap.servers"] == "127.0.0.1:1"
    definitions = (folder / "transformations" / f"{name}.py").read_text()
    for key in spec["configuration"]:
        assert not key.startswith("spark.nilometer.") or f'"{key}"' in definitions
    assert "in" in spec["configuration"].values()
    again = CliRunner().invoke(pipeline, arguments)
    assert again.exit_code == 1
    assert "is not empty: name another folder" in again.output


def test_what_cannot_be_declared_is_refused_with_what_can(tmp_path):
    result = CliRunner().invoke(pipeline, ["declare", "changelog", str(tmp_path / "p")])
    assert result.exit_code == 2
    assert all(f"'{name}'" in result.output for name in DECLARED)
    result = CliRunner().invoke(pipeline, ["declare", "logs", str(tmp_path / "p"), "--to", "t"])
    assert result.exit_code == 2
    assert "--to: logs does not have this option" in result.output


def test_faults_of_a_project_are_told_before_spark_starts(tmp_path):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    spec = write_project("logs", tmp_path / "p", address, {"logs": "lines"})
    result = CliRunner().invoke(spark_group, ["pipelines", "run", "--spec", str(spec)])
    assert result.exit_code == 1
    assert f"no broker answers at {address}" in result.output
    spec.write_text("- no mapping")
    result = CliRunner().invoke(spark_group, ["pipelines", "run", "--spec", str(spec)])
    assert result.exit_code == 1
    assert "is not a specification of a pipeline" in result.output
    result = CliRunner().invoke(spark_group, ["pipelines", "run", "--spec", str(tmp_path / "none.yml")])
    assert result.exit_code == 2
    assert "does not exist" in result.output
