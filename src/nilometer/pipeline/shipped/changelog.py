"""changelog: a database's change events -> the table as it is now, and as it was at any time.

    nilometer pipeline capture --dsn postgresql://user@host/shop --table public.accounts --topic accounts
    nilometer pipeline run changelog --topic accounts

Reads change events of Debezium's connectors for PostgreSQL, MySQL and MariaDB, which ``nilometer pipeline
capture`` runs, with or without the schema around each value, and plain events
(:mod:`nilometer.pipeline.changes.change_events`). Writes two tables, in Parquet:

- ``versions``: the newest version of every key, also of deleted ones. ``current`` (SCD type 1) returns those
  not deleted: the database's table as it is now.
- ``history``: the older versions, with the times from and until which they were valid. Together with the
  newest ones they are ``timeline`` (SCD type 2): the table as it was at any time.

A topic may have several tables: the column ``table`` tells them apart. A row is kept as JSON, so that columns
that are added or dropped do not stop the job; ``columns`` converts it to columns by a schema that you give.

Changes are ordered by their position in the database's log, so that a change that arrives again, or late,
changes nothing, and is counted as repeated. What is no change event, or has no key, goes to the topic of dead
letters. Exactly once: each batch writes a new folder of ``versions``, made from the previous one, and one of
``history``; a batch that is run again replaces its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, RunFiles, start_batches
from nilometer.pipeline.changes.changed_rows import VERSION, advance, parse, version_columns, versions
from nilometer.pipeline.recognition import HEADERS

SOURCE_OPTIONS = HEADERS

HISTORY = f"{VERSION}, valid_until timestamp"


def start(
    records: DataFrame,
    output: str,
    *,
    dead_letters: Mapping[str, str],
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""

    def write(batch: Batch) -> None:
        ended = advance(batch, dead_letters).where("not newest and not deleted")
        until = F.timestamp_micros("valid_until").alias("valid_until")
        batch.write("history", ended.select(*version_columns(), until).coalesce(1))

    lines = parse(records)
    return start_batches("changelog", lines, output, write, available_now=available_now, seconds=seconds)


# --- the tables


def current(spark: SparkSession, output: str) -> DataFrame:
    """Return the present rows (SCD type 1)."""
    return versions(spark, output).where("not deleted")


def timeline(spark: SparkSession, output: str) -> DataFrame:
    """Return every version of every row, and from and until when it was valid (SCD type 2)."""
    open_ended = current(spark, output).withColumn("valid_until", F.lit(None).cast("timestamp"))
    # A batch that is run again may have written its folder of history, and not be done yet.
    last = RunFiles(spark, output).last()
    closed = spark.read.schema(f"{HISTORY}, batch int").parquet(f"{output}/history")
    number = last.number if last is not None else -1
    return closed.where(F.col("batch") <= number).drop("batch").unionByName(open_ended)


def columns(rows: DataFrame, schema: str) -> DataFrame:
    """Return the rows with their JSON as columns of ``schema``, such as ``id int, balance decimal(12,2)``."""
    others = [name for name in rows.columns if name not in ("key", "row")]
    return rows.select("key", F.from_json("row", schema).alias("r"), *others).select("key", "r.*", *others)


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    rows = versions(spark, output).where("key is not null")
    return {
        "Rows": rows.groupBy("table")
        .agg(
            F.count_if(~F.col("deleted")).alias("current"),
            F.count_if("deleted").alias("deleted"),
            F.max("valid_from").alias("newest_change"),
        )
        .orderBy("table"),
        f"Most changed {top} rows": timeline(spark, output)
        .groupBy("table", "key")
        .agg(F.count("*").alias("versions"), F.max_by("row", "valid_from").alias("newest"))
        .orderBy(F.col("versions").desc(), "table", "key")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    history = timeline(spark, output)
    of_rows = history.groupBy("table", "key").agg(F.count("*").alias("versions"))
    minute = F.date_trunc("minute", "valid_from").alias("minute")
    return {
        "Versions that began, per minute": history.groupBy(minute)
        .agg(F.count("*").alias("versions"))
        .orderBy("minute"),
        "Rows by how many versions they had": of_rows.groupBy("versions")
        .agg(F.count("*").alias("rows"))
        .orderBy("versions"),
    }
