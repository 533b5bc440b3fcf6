"""burst: more records at once than their consumer can process -> processed at a set rate, none lost.

    nilometer pipeline run burst --topic burst --available-now --report burst.html

Peak shaving: the topic takes the burst as fast as it arrives, and this job processes it no faster than a
downstream service can take it: ``RECORDS`` records, then a pause until the ``period`` has passed. The lag
(the records in the topic that are not processed yet) rises with the burst and falls in a straight line; the
progress of each batch contains it, and the report plots it.

The table ``drained``, in Parquet, has one row per batch and partition: numbers of records and bytes, first
and last offset. Exactly once: a batch that is run again replaces its folder. Put your own processing of a
batch, such as calls to a service, in the place where this file writes the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, start_batches

RECORDS = 100_000
"""The records of one batch; ``--option maxOffsetsPerTrigger=…`` sets another number."""
SOURCE_OPTIONS = {"maxOffsetsPerTrigger": str(RECORDS)}


@dataclass(frozen=True)
class Settings:
    """What ``--set`` and ``--settings`` can change."""

    period: timedelta = timedelta(seconds=1)
    """The time in which one batch may be processed."""


def drained_of(records: DataFrame) -> DataFrame:
    return records.groupBy("topic", "partition").agg(
        F.count("*").alias("records"),
        F.coalesce(F.sum(F.octet_length("value")), F.lit(0)).alias("bytes"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.max("timestamp").alias("newest"),
        F.current_timestamp().alias("drained_at"),
    )


def start(
    records: DataFrame,
    output: str,
    *,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 1,
) -> StreamingQuery:
    """Start the job: process the topic to its end (``available_now``), or until stopped."""
    period_s = settings.period.total_seconds()

    def write(batch: Batch) -> None:
        began = time.monotonic()
        batch.account().read = batch.records.count()
        drained = batch.write("drained", drained_of(batch.records).coalesce(1))
        for row in drained.agg(F.coalesce(F.sum("records"), F.lit(0))).collect():
            batch.account().add("results", "drained", row[0])
        time.sleep(max(0.0, period_s - (time.monotonic() - began)))

    # A batch begins when the one before has ended: its own pause sets the rate.
    return start_batches("burst", records, output, write, available_now=available_now, seconds=0)


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    drained = spark.read.parquet(f"{output}/drained")
    return {
        "Drained": drained.groupBy("topic", "partition")
        .agg(
            F.sum("records").alias("records"),
            F.sum("bytes").alias("bytes"),
            F.min("first_offset").alias("first_offset"),
            F.max("last_offset").alias("last_offset"),
        )
        .orderBy("topic", "partition"),
        f"Last {top} batches": drained.groupBy("batch")
        .agg(F.sum("records").alias("records"), F.max("drained_at").alias("drained_at"))
        .orderBy(F.col("batch").desc())
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    drained = spark.read.parquet(f"{output}/drained")
    at = F.max("drained_at").alias("drained_at")
    batches = drained.groupBy("batch").agg(at, F.sum("records").alias("records"))
    return {"Records per batch": batches.orderBy("batch").select("batch", "records")}
