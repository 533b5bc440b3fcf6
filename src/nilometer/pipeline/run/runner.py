"""Runs a shipped pipeline from a topic into tables, through either connector, and reports its progress.

Checks brokers, topics and files before Spark is started, since that takes a tenth of a second and Spark ten
seconds; follows the query's progress, and stops it between two batches.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nilometer.pipeline.account import accounts_json
from nilometer.pipeline.errors import PipelineError, SourceError, readable
from nilometer.pipeline.recognition import Formats
from nilometer.pipeline.run.catalogue import DEAD_LETTERS
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.source_options import Selection, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from nilometer.pipeline.batches import Done, RunFiles
    from nilometer.pipeline.run.catalogue import PipelineModule

CONNECTORS = ("nilometer", "kafka")
PREFLIGHT_TIMEOUT_MS = 5_000
POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Job:
    """The arguments of one run of a pipeline."""

    topic: str
    """The topic to read, or several separated by commas, in the order of the pipeline's inputs."""
    output: str
    bootstrap_servers: str
    connector: str = "nilometer"
    available_now: bool = False
    seconds: int = 5
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further options of the source."""
    client: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The settings of the clients' connections: ``security.protocol``, ``sasl.*``, ``ssl.*``."""
    to_topic: str | None = None
    """The topic to write to, for pipelines that do."""
    dead_letters: str = DEAD_LETTERS
    """The topic of rejected records."""
    table: str | None = None
    """The path of the table, for pipelines that need one."""
    formats: Formats | None = None
    """The formats of lines, for pipelines that read lines."""
    settings: Any = None
    """The pipeline's ``Settings``; None for its defaults."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.topic.split(","))

    @property
    def connection_options(self) -> dict[str, str]:
        """The options of sources and sinks that say how to connect."""
        security = {f"kafka.{key}": value for key, value in self.client.items()}
        return {**security, "kafka.bootstrap.servers": self.bootstrap_servers}

    def source_options(self, topic: str) -> dict[str, str]:
        return {
            **self.connection_options,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            **self.options,
        }

    def for_pipeline(self, start: Callable[..., Any]) -> dict[str, Any]:
        """Return the keyword arguments for the pipeline's ``start``."""
        more: dict[str, Any] = {"available_now": self.available_now, "seconds": self.seconds}
        letters = {**self.connection_options, "topic": self.dead_letters}
        more |= accepted(start, formats=self.formats, settings=self.settings, dead_letters=letters)
        if self.to_topic is not None:
            more["to_topic"] = {**self.connection_options, "topic": self.to_topic}
        if self.table is not None:
            more["table"] = self.table
        return more


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return those of the arguments that are not None and that ``function`` takes by name."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if value is not None and name in taken}


@dataclass(frozen=True, slots=True)
class Progress:
    """The last batch of a running query."""

    batch_id: int
    rows: int
    rows_per_second: float
    """The rate at which the batch was processed."""
    input_rows_per_second: float
    """The rate at which its records arrived since the previous batch."""
    lag: int
    """The number of offsets in the topics after this batch, when the batch was planned."""
    at: datetime
    """The time at which the batch began."""
    event_time_watermark: datetime | None
    """The watermark after this batch: earlier event times count as complete."""
    end_offsets: Mapping[str, Mapping[str, int]]
    tally: Mapping[str, Any] | None = None
    """The lines of the batch by file and format, as JSON of a Tally; None if the pipeline counts none."""
    accounts: Mapping[str, Any] | None = None
    """What became of the batch's records, by input, as JSON; None if the pipeline keeps no account."""
    totals: Mapping[str, Any] | None = None
    """The accounts of all batches up to this one."""
    notes: Mapping[str, int] = field(default_factory=dict[str, int])
    """What else is to be said of the rows of all batches, and of how many."""

    def to_json(self) -> dict[str, Any]:
        watermark = self.event_time_watermark
        return {
            **asdict(self),
            "at": self.at.isoformat(),
            "event_time_watermark": watermark.isoformat() if watermark else None,
        }


def check_source(job: Job) -> dict[str, int]:
    """Check that the cluster responds and has the topics; return the number of partitions of each.

    Raises PipelineError.
    """
    options = dict(parse_options(job.source_options(job.topic), streaming=True).consumer)
    options.setdefault("default.api.timeout.ms", str(PREFLIGHT_TIMEOUT_MS))
    reader = ClusterReader(options.items())
    try:
        topics = reader.topics(Selection(topics=job.topics))
    except SourceError as error:
        raise PipelineError(
            f"no broker answers at {job.bootstrap_servers} ({error.__cause__}). "
            "Start one with `nilometer up`, or name another with --bootstrap-server"
        ) from error
    finally:
        reader.close()
    for topic in job.topics:
        if topic not in topics:
            raise PipelineError(
                f"topic {topic} does not exist at {job.bootstrap_servers}. "
                f"Create it with: nilometer topic create {topic}"
            )
    return {name: len(topic.partitions) for name, topic in topics.items()}


def check_output(output: str, topics: Sequence[str] = ()) -> None:
    """Raise PipelineError if ``output`` has tables but no checkpoint: batch ids would start at 0 again.

    Also if its checkpoint is one of other ``topics``: their offsets do not fit.
    """
    folder = Path(output)
    if "://" in output or not folder.exists():
        return
    known = checkpoint_topics(folder)
    if known and topics and known != set(topics):
        raise PipelineError(
            f"{output} has the checkpoint and the tables of topic {', '.join(sorted(known))}, and this run "
            f"reads {', '.join(topics)}. Give this run tables of its own with --name NAME (or --output DIR)"
        )
    tables = sorted({path.parent.name for path in folder.glob("*/batch=*")})
    if tables and not (folder / "checkpoint").exists():
        raise PipelineError(
            f"{output} has tables ({', '.join(tables)}) but no checkpoint: batches would be numbered from "
            "0 again, next to the old ones. Name another --output, or remove the folder"
        )


def checkpoint_topics(output: Path) -> set[str]:
    """Return the topics whose offsets are in the newest batch of the checkpoint; none without one."""
    batches = [path for path in (output / "checkpoint" / "offsets").glob("*") if path.name.isdigit()]
    if not batches:
        return set()
    lines = max(batches, key=lambda path: int(path.name)).read_text(encoding="utf-8").splitlines()
    positions = [line for line in lines[2:] if line.startswith("{")]
    return {topic for position in positions for topic in _offsets(position)}


def check_settings(pipeline: PipelineModule, job: Job) -> None:
    """Raise PipelineError for settings that do not fit what is in the output's folder."""
    check = getattr(pipeline, "check", None)
    if check is not None:
        check(job.output, job.settings)


def read_topics(spark: SparkSession, pipeline: PipelineModule, job: Job) -> list[DataFrame]:
    usual: dict[str, str] = getattr(pipeline, "SOURCE_OPTIONS", {})
    return [
        spark.readStream.format(job.connector).options(**{**usual, **job.source_options(topic)}).load()
        for topic in job.topics
    ]


def run(
    spark: SparkSession,
    pipeline: PipelineModule,
    job: Job,
    *,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Progress | None:
    """Run until everything is read (``available_now``) or ``stopped`` returns True.

    Returns the progress of the last batch, None if there was none. ``on_progress`` is called after each
    batch. Raises PipelineError.
    """
    from nilometer.pipeline.batches import RunFiles

    check_output(job.output, job.topics)
    _remove_open(job.output)
    query: StreamingQuery | None = None
    try:
        query = pipeline.start(
            *read_topics(spark, pipeline, job), os.fspath(job.output), **job.for_pipeline(pipeline.start)
        )
        watch = _Watch(query, RunFiles(spark, os.fspath(job.output)), on_progress)
        while not _ended(query):
            watch.report()
            if stopped():
                _stop_between_batches(query)
        watch.report()
        return watch.last
    except PipelineError:
        raise
    except Exception as error:
        message = readable(error)
        if message is None:
            raise
        raise PipelineError(message) from error
    finally:
        if query is not None and query.isActive:
            query.stop()


def finish(spark: SparkSession, pipeline: PipelineModule, job: Job) -> None:
    """Write the rows that are still open after the last batch as if the input ended with it.

    They go to folders ``batch=open`` of the tables, which the next run removes: they stay in the run's state,
    and are written when they end.
    """
    write: Callable[..., None] = getattr(pipeline, "finish")  # noqa: B009
    write(spark, job.output, **accepted(write, settings=job.settings))


def _remove_open(output: str) -> None:
    for folder in Path(output).glob("*/batch=open") if "://" not in output else ():
        shutil.rmtree(folder)


def _ended(query: StreamingQuery) -> bool:
    """Wait ``POLL_SECONDS``; return whether the query has ended. Raises the query's error."""
    return bool(query.awaitTermination(POLL_SECONDS))  # pyright: ignore[reportArgumentType]: it takes a float


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stop the query after its running batch: an interrupted batch would be run again at the next start."""
    while query.isActive and query.status["isTriggerActive"]:
        _ended(query)
    query.stop()


class _Watch:
    """Reports the progress of each batch of a query once."""

    def __init__(
        self, query: StreamingQuery, files: RunFiles, on_progress: Callable[[Progress], None]
    ) -> None:
        self.last: Progress | None = None
        self._query = query
        self._files = files
        self._on_progress = on_progress

    def report(self) -> None:
        for progress in self._query.recentProgress:
            one: Any = progress
            if not one["numInputRows"] or (self.last is not None and one["batchId"] <= self.last.batch_id):
                continue
            done = self._files.done(one["batchId"])
            self.last = Progress(
                one["batchId"],
                one["numInputRows"],
                one["processedRowsPerSecond"],
                one["inputRowsPerSecond"],
                sum(_lag(source) for source in one["sources"]),
                datetime.fromisoformat(one["timestamp"]),
                done.watermark if done is not None else None,
                {
                    topic: offsets
                    for source in one["sources"]
                    for topic, offsets in _offsets(source["endOffset"]).items()
                },
                done.tally if done is not None else None,
                **(_account(done) if done is not None else {}),
            )
            self._on_progress(self.last)


def _account(done: Done) -> dict[str, Any]:
    return {
        "accounts": accounts_json(done.accounts),
        "totals": accounts_json(done.totals),
        "notes": done.notes,
    }


def _lag(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"] or "{}")
    return sum(
        max(offset - end.get(topic, {}).get(number, 0), 0)
        for topic, numbers in latest.items()
        for number, offset in numbers.items()
    )


def _offsets(position: str) -> dict[str, dict[str, int]]:
    """Return a position's offsets; both connectors use this JSON, ours with additional ``#`` keys."""
    topics: dict[str, dict[str, int]] = json.loads(position) or {}
    return {topic: offsets for topic, offsets in topics.items() if not topic.startswith("#")}
