"""changelog: a database's change events -> the table as it is now, and as it was at any time.

    nilometer pipeline capture --dsn postgresql:///shop --table public.accounts --topic accounts
    nilometer pipeline run changelog --topic accounts

Reads change events as ``capture`` writes them from PostgreSQL's logical decoding, keyed by primary key:
``{"op": "c", "table": "public.accounts", "key": {"id": 7}, "after": {"id": 7, "balance": 5}, "lsn": 23884,
"seq": 0, "at": …}``. ``op`` is r for a row that existed when capturing began, c for created, u for updated,
d for deleted, t for all rows deleted at once (truncate). Writes two tables, in Parquet:

- ``versions``: the newest version of every key, also of deleted ones. ``current`` (SCD type 1) returns those
  not deleted: the database's table as it is now.
- ``history``: the older versions, with the times from and until which they were valid. Together with the
  newest ones they are ``timeline`` (SCD type 2): the table as it was at any time.

Events of Debezium's PostgreSQL connector are read too, as JSON without schemas (``schemas.enable=false`` of
both converters): their key is the record's, their ``lsn`` and time those of their ``source``.

A row is kept as JSON, so that columns that are added or dropped do not stop the job; ``columns`` converts it
to columns by a schema that you give.

Changes are ordered by their position in the database's log (``lsn`` of the commit, then ``seq``), so that a
change that arrives again, or late, changes nothing. Exactly once: each batch writes a new folder of
``versions``, made from the previous one, and one of ``history``; a batch that is run again replaces its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.recognition import HEADERS, counted, fitting, source_of

LATENESS = timedelta(0)
SOURCE_OPTIONS = HEADERS
KEPT = 3
"""The number of folders of ``versions`` that are kept: a batch needs only the previous one."""

EVENT = (
    "op string, table string, key string, after string, lsn bigint, seq bigint, at timestamp, "
    "source struct<lsn: bigint, ts_us: bigint>"
)
VERSION = "key string, row string, deleted boolean, lsn bigint, seq bigint, valid_from timestamp"
HISTORY = f"{VERSION}, valid_until timestamp"
DELETES = ("d", "t")


def parse(records: DataFrame) -> DataFrame:
    """Return one row per change; without records that are no change events."""
    return fitting(lines_of(records))


def lines_of(records: DataFrame) -> DataFrame:
    """Return one row per record; the format of one that is no change event is ``unparsed``.

    The position and the time of an event of Debezium are in its ``source``. Its record without a value, after
    a deletion, is ``blank``.
    """
    event = F.from_json(F.col("value").cast("string"), EVENT)
    line = F.make_valid_utf8(F.coalesce(F.col("value").cast("string"), F.lit("")))
    is_change = F.col("op").isNotNull() & F.coalesce("lsn", "source.lsn").isNotNull()
    form = F.when(is_change, "change").when(F.trim("line") == "", "blank").otherwise("unparsed")
    return (
        records.select(
            event.alias("c"),
            F.col("key").cast("string").alias("record_key"),
            source_of(records).alias("file"),
            line.alias("line"),
        )
        .select("c.*", "record_key", "file", "line")
        .select(
            F.coalesce("key", "record_key", F.lit("")).alias("key"),
            F.col("after").alias("row"),
            F.col("op").isin(*DELETES).alias("deleted"),
            F.coalesce("lsn", "source.lsn").alias("lsn"),
            F.coalesce("seq", F.lit(0)).alias("seq"),
            F.coalesce("at", F.timestamp_micros("source.ts_us")).alias("valid_from"),
            "op",
            form.alias("format"),
            F.col("file").alias("source"),
            "line",
        )
    )


def next_versions(known: DataFrame, changes: DataFrame) -> DataFrame:
    """Return the known and the changed versions of each key; ``valid_until`` is null for the newest.

    A change that is not newer than the key's newest known version is a repeat, and left out.
    """
    truncates = changes.where("op = 't'").select(
        F.col("lsn").alias("t_lsn"), F.col("seq").alias("t_seq"), F.col("valid_from").alias("t_at")
    )
    rows = changes.where("op != 't'").drop("op")
    keys = known.select("key", "lsn", "seq").union(rows.select("key", "lsn", "seq"))
    emptied = (
        keys.groupBy("key")
        .agg(F.min(F.struct("lsn", "seq")).alias("first"))
        .join(truncates, F.struct("t_lsn", "t_seq") > F.col("first"))
        .select(
            "key",
            F.lit(None).cast("string").alias("row"),
            F.lit(True).alias("deleted"),
            F.col("t_lsn").alias("lsn"),
            F.col("t_seq").alias("seq"),
            F.col("t_at").alias("valid_from"),
        )
    )
    newest = known.select("key", F.struct("lsn", "seq").alias("newest"))
    incoming = (
        rows.unionByName(emptied)
        .dropDuplicates(["key", "lsn", "seq"])
        .join(newest, "key", "left_outer")
        .where(F.col("newest").isNull() | (F.struct("lsn", "seq") > F.col("newest")))
        .drop("newest")
    )
    by_key = Window.partitionBy("key").orderBy("lsn", "seq")
    return known.unionByName(incoming).withColumn("valid_until", F.lead("valid_from").over(by_key))


def start(
    records: DataFrame, output: str, *, available_now: bool = False, seconds: int = 5
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""
    spark = records.sparkSession

    def write(batch: DataFrame, batch_id: int) -> None:
        known = versions(spark, output, before=batch_id)
        lines = next_versions(known, batch).persist()
        replaced = lines.where("valid_until is not null and not deleted")
        folder = f"batch={batch_id:08d}"
        replaced.coalesce(1).write.mode("overwrite").parquet(f"{output}/history/{folder}")
        newest = lines.where("valid_until is null").drop("valid_until")
        newest.write.mode("overwrite").parquet(f"{output}/versions/{folder}")
        lines.unpersist()
        _forget_old(spark, output, batch_id)

    job = (
        fitting(counted(lines_of(records)))
        .writeStream.foreachBatch(write)
        .queryName("changelog")
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


# --- the tables


def versions(spark: SparkSession, output: str, before: int | None = None) -> DataFrame:
    """Return the newest version of every key after the last batch (earlier than ``before``, if given)."""
    batches = [number for number in _batches(spark, output) if before is None or number < before]
    if not batches:
        return spark.createDataFrame([], VERSION)
    return spark.read.schema(VERSION).parquet(f"{output}/versions/batch={batches[-1]:08d}")


def current(spark: SparkSession, output: str) -> DataFrame:
    """Return the present rows (SCD type 1)."""
    return versions(spark, output).where("not deleted")


def timeline(spark: SparkSession, output: str) -> DataFrame:
    """Return every version of every row, and from and until when it was valid (SCD type 2)."""
    open_ended = current(spark, output).withColumn("valid_until", F.lit(None).cast("timestamp"))
    # A batch that is run again may have written its folder of history and not yet that of versions.
    last = max(_batches(spark, output), default=-1)
    closed = spark.read.schema(f"{HISTORY}, batch int").parquet(f"{output}/history")
    return closed.where(F.col("batch") <= last).drop("batch").unionByName(open_ended)


def columns(rows: DataFrame, schema: str) -> DataFrame:
    """Return the rows with their JSON as columns of ``schema``, such as ``id int, balance decimal(12,2)``."""
    others = [name for name in rows.columns if name not in ("key", "row")]
    return rows.select("key", F.from_json("row", schema).alias("r"), *others).select("key", "r.*", *others)


def _batches(spark: SparkSession, output: str) -> list[int]:
    """Return the batches whose folder of ``versions`` is complete: Spark marks it by a file _SUCCESS."""
    pattern, files = _hadoop(spark, f"{output}/versions/batch=*/_SUCCESS")
    marks: list[Any] = files.globStatus(pattern) or []
    folders: list[str] = [mark.getPath().getParent().getName() for mark in marks]
    return sorted(int(name.removeprefix("batch=")) for name in folders)


def _forget_old(spark: SparkSession, output: str, batch_id: int) -> None:
    for number in _batches(spark, output):
        if number <= batch_id - KEPT:
            path, files = _hadoop(spark, f"{output}/versions/batch={number:08d}")
            files.delete(path, True)


def _hadoop(spark: SparkSession, where: str) -> tuple[Any, Any]:
    """Return a Hadoop path and its file system."""
    # PySpark has no public way to Hadoop's file systems.
    jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
    java: Any = spark._jsc  # pyright: ignore[reportPrivateUsage]
    path = jvm.org.apache.hadoop.fs.Path(where)
    return path, path.getFileSystem(java.hadoopConfiguration())


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    history = timeline(spark, output)
    return {
        "Rows": versions(spark, output).agg(
            F.count_if(~F.col("deleted")).alias("current"),
            F.count_if("deleted").alias("deleted"),
            F.max("valid_from").alias("newest_change"),
        ),
        f"Most changed {top} rows": history.groupBy("key")
        .agg(F.count("*").alias("versions"), F.max_by("row", "valid_from").alias("newest"))
        .orderBy(F.col("versions").desc(), "key")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    history = timeline(spark, output)
    counted = history.groupBy("key").agg(F.count("*").alias("versions"))
    minute = F.date_trunc("minute", "valid_from").alias("minute")
    return {
        "Versions that began, per minute": history.groupBy(minute)
        .agg(F.count("*").alias("versions"))
        .orderBy("minute"),
        "Rows by how many versions they had": counted.groupBy("versions")
        .agg(F.count("*").alias("rows"))
        .orderBy("versions"),
    }
