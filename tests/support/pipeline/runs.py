"""Shared by the tests of shipped pipelines: writes input to topics, and runs a pipeline's module."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nilometer.cli.pipelines.pipeline_state_commands import render_report
from nilometer.pipeline.run import runner
from nilometer.pipeline.run.catalogue import DEAD_LETTERS, SHIPPED
from nilometer.pipeline.run.run_record import RunFolder

from .filled_topics import Sent, Topics

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

AFTER_SAMPLES_MS = 1_714_694_400_000
"""2024-05-03, after the times of all generated events: the time stamp of their records."""
WITH_TABLE = ("join", "notifications")


def send_values(
    topics: Topics,
    values: Iterable[bytes | None],
    topic: str | None = None,
    partitions: int = 1,
    timestamp: int = 1_700_000_000_000,
) -> str:
    topic = topic or topics.create(partitions)
    topics.send(topic, [Sent(n % partitions, None, value, timestamp) for n, value in enumerate(values)])
    return topic


def run_pipeline(
    spark: SparkSession,
    topics: Topics,
    name: str,
    topic: str,
    output: Path,
    *,
    to_topic: str | None = None,
    table: str | None = None,
    options: Mapping[str, str] | None = None,
    settings: object = None,
    dead_letters: str = DEAD_LETTERS,
) -> runner.Progress | None:
    """Run a pipeline until everything is read; return the last batch's progress."""
    job = runner.Job(
        topic,
        str(output),
        topics.bootstrap,
        available_now=True,
        options=options or {},
        to_topic=to_topic,
        table=table,
        settings=settings,
        dead_letters=dead_letters,
    )
    return runner.run(spark, SHIPPED[name].load(), job)


def read_values(spark: SparkSession, topics: Topics, topic: str) -> list[bytes]:
    options = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}
    rows = spark.read.format("nilometer").options(**options).load().orderBy("partition", "offset").collect()
    return [bytes(row.value) for row in rows]


def forget_last_commit(output: Path) -> None:
    """Remove the last commit of the checkpoint, as after a crash before it: the batch is run again."""
    last = max((output / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def assert_reported(spark: SparkSession, name: str, output: Path) -> None:
    """Assert that the page that `--report` writes has every result table and at least one plot."""
    module = SHIPPED[name].load()
    page = output / "report.html"
    render_report(spark, module, SHIPPED[name], RunFolder(output, name), str(output), page)
    text = page.read_text()
    missing = [title for title in module.results(spark, str(output)) if title not in text]
    assert not missing
    assert "<svg" in text
