"""metrics: measurements in a topic -> rollups by minute, and alerts back into a topic.

    nilometer pipeline run metrics --topic measurements --to alerts --available-now

Reads measurements as JSON: ``{"at": "2024-05-01T10:00:03Z", "service": "web", "metric": "latency_ms",
"value": 12.5}``, or lines of your own formats (``--formats``) with these columns. Writes

- the table ``rollups``, in Parquet: count, mean, least, greatest and sum per minute, service and metric,
  each written once, when the event-time watermark (two minutes before the newest measurement) has passed
  the minute's end; later measurements of that minute are counted as late;
- the topic of alerts: one record per minute, service and rule that was broken, keyed by service.

The table is exactly once: a batch that is run again replaces its folder. Alerts are at least once: each has
an ``id`` made of service, rule and minute, so that the receiver of alerts can act once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import (
    Batch,
    RunFiles,
    microseconds,
    send,
    start_batches,
    window_start_us,
    window_text,
)
from nilometer.pipeline.events import EventSettings, taken, typed
from nilometer.pipeline.recognition import HEADERS, Formats


class Rule(NamedTuple):
    """An alert is written for each minute in which ``column`` of the metric's rollup is above the limit."""

    name: str
    metric: str
    column: str
    limit: float


@dataclass(frozen=True)
class Settings(EventSettings):
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = timedelta(minutes=2)
    window: timedelta = timedelta(minutes=1)
    rules: tuple[Rule, ...] = (
        Rule("slow", "latency_ms", "mean", 250.0),
        Rule("stalled", "latency_ms", "greatest", 2_000.0),
        Rule("failing", "errors", "sum", 10.0),
    )


SOURCE_OPTIONS = HEADERS

MEASUREMENT = "at timestamp, service string, metric string, value double"


def parse(records: DataFrame, *, files: bool | None = None) -> DataFrame:
    """Return one row per measurement; without records that are none."""
    return taken(typed(records, MEASUREMENT, Settings(), files=files))


def rollups_of(
    measurements: DataFrame, settings: Settings = Settings(), known: DataFrame | None = None
) -> DataFrame:
    """Return the rollups of some measurements, and of those in ``known`` rollups.

    Those of a stream are returned when its watermark has passed their end.
    """
    value = [F.col("value").alias(one) for one in ("least", "greatest", "sum")]
    parts = measurements.select("at", "service", "metric", F.lit(1).alias("count"), *value)
    if known is not None:
        parts = parts.unionByName(known.drop("mean").withColumnRenamed("minute", "at"))
    return (
        parts.withWatermark("at", f"{microseconds(settings.lateness)} microseconds")
        .groupBy(
            F.window("at", f"{microseconds(settings.window)} microseconds").alias("window"),
            "service",
            "metric",
        )
        .agg(
            F.sum("count").alias("count"),
            (F.sum("sum") / F.sum("count")).alias("mean"),
            F.min("least").alias("least"),
            F.max("greatest").alias("greatest"),
            F.sum("sum").alias("sum"),
        )
        .select(F.col("window.start").alias("minute"), "service", "metric", *ROLLUPS)
    )


ROLLUPS = ("count", "mean", "least", "greatest", "sum")
ROLLUP = (
    "minute timestamp, service string, metric string, count bigint, mean double, least double, "
    "greatest double, sum double"
)


def alerts_of(rollups: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return key and value of a record for each rule that a rollup breaks."""
    broken = F.filter(
        F.array(
            *[
                F.struct(
                    F.lit(name).alias("rule"),
                    (F.col("metric") == metric).alias("applies"),
                    F.col(column).cast("double").alias("value"),
                    F.lit(limit).alias("limit"),
                )
                for name, metric, column, limit in settings.rules
            ]
        ),
        lambda one: one["applies"] & (one["value"] > one["limit"]),
    )
    minute = window_text("minute")
    alert = F.struct(
        F.concat_ws("/", "service", "alert.rule", minute).alias("id"),
        minute.alias("minute"),
        "service",
        "alert.rule",
        "metric",
        "alert.value",
        "alert.limit",
    )
    alerts = rollups.withColumn("alert", F.explode(broken))
    return alerts.select(F.col("service").alias("key"), F.to_json(alert).alias("value"))


def start(
    records: DataFrame,
    output: str,
    *,
    to_topic: Mapping[str, str],
    dead_letters: Mapping[str, str],
    formats: Formats | None = None,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job. ``to_topic`` and ``dead_letters`` are the sink's options: brokers and a topic."""
    closes = window_start_us("at", settings.window) + microseconds(settings.window)
    is_over = F.unix_micros("minute") + microseconds(settings.window)

    def write(batch: Batch) -> None:
        measurements = batch.on_time(closes, settings, dead_letters)
        rollups = rollups_of(measurements, settings, batch.state("rollups", ROLLUP))
        rollups = batch.persisted(rollups.withColumn("is_over", batch.is_over(is_over)))
        batch.settle(rollups, F.col("count"), "in a rollup")
        ended = batch.write("rollups", rollups.where("is_over").drop("is_over").coalesce(1))
        batch.keep("rollups", rollups.where("not is_over").drop("is_over").coalesce(1))
        send(alerts_of(ended, settings), to_topic, "alerts", once=False)

    lines = typed(records, MEASUREMENT, settings, formats=formats)
    return start_batches("metrics", lines, output, write, available_now=available_now, seconds=seconds)


def finish(spark: SparkSession, output: str) -> None:
    """Write the windows that have not ended. Alerts are written only when a window has ended."""
    files = RunFiles(spark, output)
    rollups = files.open_rows("rollups", ROLLUP)
    if rollups is not None:
        files.write_open("rollups", rollups)


def results(
    spark: SparkSession, output: str, top: int = 10, *, settings: Settings = Settings()
) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    rollups = spark.read.parquet(f"{output}/rollups")
    return {
        "Measurements": rollups.groupBy("service", "metric")
        .agg(
            F.sum("count").alias("count"),
            F.round(F.sum("sum") / F.sum("count"), 2).alias("mean"),
            F.max("greatest").alias("greatest"),
        )
        .orderBy("service", "metric"),
        "Alerts": alerts_of(rollups, settings)
        .select(F.get_json_object("value", "$.rule").alias("rule"), F.col("key").alias("service"))
        .groupBy("service", "rule")
        .agg(F.count("*").alias("minutes"))
        .orderBy("service", "rule"),
        f"Slowest {top} minutes": rollups.where("metric = 'latency_ms'")
        .orderBy(F.col("mean").desc(), "minute", "service")
        .select("minute", "service", "count", F.round("mean", 2).alias("mean"), "greatest")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    rollups = spark.read.parquet(f"{output}/rollups")

    def by_service(metric: str, column: str) -> DataFrame:
        wanted = rollups.where(F.col("metric") == metric)
        return wanted.groupBy("minute").pivot("service").agg(F.first(column)).orderBy("minute")

    return {
        "Mean latency per minute, ms": by_service("latency_ms", "mean"),
        "Errors per minute": by_service("errors", "sum"),
    }
