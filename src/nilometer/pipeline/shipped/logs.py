"""logs: log lines in a topic -> the parsed lines, and counts of them.

    nilometer pipeline run logs --topic logs --output ./logs-tables --available-now

Reads lines of any mixture of formats: those that `nilometer pipeline formats list` shows, and your own
(`--formats my.toml`). A line that fits no format is kept as ``unparsed``, so that the numbers add up to the
number of records. Writes two tables, in Parquet:

- ``lines``: one row per record: format, event_time, level, label (HTTP status, level, dpkg action, ...), name
  (path, program, logger or package), all the format's columns as ``fields``, the line itself, its file
  (``source``), topic, partition and offset.
- ``counts``: the number of lines per format and minute, per format and label, per format and name. Each batch
  writes its own counts; the totals are the sums of ``lines`` over all batches, as in ``results``.

Exactly once. Spark's checkpoint gives every batch an id and fixes its offsets before the batch runs, so a
batch that is run again after a crash has the same records. Each batch writes one folder per table, named by
the id, and a repeated batch replaces that folder: however often it ran, its records are there once. (Spark's
file sink would be enough for ``lines`` but not for two tables at once; and counts by a streaming aggregation
would have to drop late lines before they could be written to Parquet, and so would not add up.)

Two watermarks. The event-time watermark is this job's: ten minutes before the newest time in a line, never
decreasing; a minute before it counts as complete. Late lines are still counted, in their own minute; a line
whose time is far ahead of its record's time stamp does not move the watermark. It has
nothing to do with a partition's high watermark, the offset below which records are committed and so can be
read at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, microseconds, start_batches
from nilometer.pipeline.events import ahead_reason
from nilometer.pipeline.recognition import HEADERS, Formats, recognise, tally_in

SOURCE_OPTIONS = HEADERS
"""The lines' files are in the headers of records that `nilometer ingest` has sent."""


@dataclass(frozen=True)
class Settings:
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = timedelta(minutes=10)
    """The distance from the newest event time read to the watermark."""
    ahead: timedelta = timedelta(hours=1)
    """A time that is further ahead of its record's time stamp does not move the watermark."""


# --- from a record to a line


def parse(records: DataFrame, formats: Formats | None = None, *, files: bool | None = None) -> DataFrame:
    """Return the table ``lines`` of some records, read by either connector."""
    return recognise(records, formats, files=files)


# --- from lines to counts


def count(lines: DataFrame) -> DataFrame:
    """Return the table ``counts`` of some lines: three groupings in one pass, named by column ``by``."""
    minute = F.date_trunc("minute", "event_time").alias("minute")
    columns = lines.select("format", minute, "label", "name")
    grouped = columns.groupingSets(
        [[F.col("format"), F.col(key)] for key in ("minute", "label", "name")],
        F.col("format"), F.col("minute"), F.col("label"), F.col("name"),
    )  # fmt: skip
    by = F.when(F.grouping("minute") == 0, "minute").when(F.grouping("label") == 0, "label").otherwise("name")
    return grouped.agg(by.alias("by"), F.count("*").alias("lines")).select(
        "by", "format", "minute", "label", "name", "lines"
    )


# --- the streaming job


def start(
    records: DataFrame,
    output: str,
    *,
    formats: Formats | None = None,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""

    def write(batch: Batch) -> None:
        written = batch.write("lines", batch.records)
        # Count the lines as written, so that the account is that of the table.
        batch.tally = tally_in(written)
        counts = batch.write("counts", count(written).coalesce(1)).where("by = 'label'")
        kind = F.when(F.col("format").isin("unparsed", "blank"), F.col("format")).otherwise("of a format")
        account = batch.account()
        for row in counts.groupBy(kind.alias("kind")).agg(F.sum("lines").alias("lines")).collect():
            account.add("results", row.kind, row.lines)
        account.read = batch.tally["lines"]
        is_bounded = ahead_reason("event_time", "ingested", settings.ahead).isNull()
        newest = written.where(is_bounded).agg(F.max(F.unix_micros("event_time"))).collect()[0][0]
        if newest is not None:
            batch.newest[""] = max(newest, batch.newest.get("", newest))
        batch.move_watermark(("",), settings.lateness)

    lines = parse(records, formats)
    return start_batches(
        "logs", lines, output, write, available_now=available_now, seconds=seconds, read_once=True
    )


# --- the results


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    counts = spark.read.parquet(f"{output}/counts")

    def total(by: str, *columns: str) -> DataFrame:
        return counts.where(F.col("by") == by).groupBy("format", *columns).agg(F.sum("lines").alias("lines"))

    busiest = F.col("lines").desc()
    whole = F.sum("lines").over(Window.partitionBy(F.lit(0)))
    percent = F.round(100 * F.col("lines") / whole, 1).alias("percent")
    of_no_format = F.col("format").isin("blank", "unparsed")
    return {
        "Lines by format": total("label")
        .select("format", "lines", percent)
        .orderBy(of_no_format, busiest, "format"),
        "Lines by status or level": total("label", "label").orderBy("format", busiest, "label"),
        f"Top {top} paths and programs": total("name", "name")
        .where(F.col("name") != "")
        .orderBy(busiest, "format", "name")
        .limit(top),
        f"Busiest {top} minutes": total("minute", "minute")
        .where(F.col("minute").isNotNull())
        .orderBy(busiest, "minute", "format")
        .limit(top),
    }


def late(counts: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return the number of lines in minutes that were complete before the lines' batch, per minute."""
    behind_us = microseconds(settings.lateness + timedelta(minutes=1))
    behind = F.expr(f"INTERVAL {behind_us} microseconds")
    minutes = counts.where("by = 'minute' AND minute IS NOT NULL")
    before = Window.orderBy("batch").rowsBetween(Window.unboundedPreceding, -1)
    batches = minutes.groupBy("batch").agg(F.max("minute").alias("newest"))
    batches = batches.select("batch", F.max("newest").over(before).alias("newest_before"))
    found = minutes.join(F.broadcast(batches), "batch").where(
        F.col("minute") <= F.col("newest_before") - behind
    )
    return found.groupBy("minute").agg(F.sum("lines").alias("late"))


def charts(spark: SparkSession, output: str, *, settings: Settings = Settings()) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    counts = spark.read.parquet(f"{output}/counts")
    by_minute = counts.where("by = 'minute' AND minute IS NOT NULL")
    labels = counts.where("by = 'label' AND label != ''").select(
        F.concat_ws(" ", "format", "label").alias("status or level"), "lines"
    )
    return {
        "Lines per minute": by_minute.groupBy("minute").pivot("format").agg(F.sum("lines")).orderBy("minute"),
        "Late lines per minute": late(counts, settings).orderBy("minute"),
        "Lines by status or level": labels.groupBy("status or level")
        .agg(F.sum("lines").alias("lines"))
        .orderBy(F.col("lines").desc(), "status or level")
        .limit(20),
    }
