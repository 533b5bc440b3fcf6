"""activity: access logs in a topic -> sessions, page views, funnels and top paths.

    nilometer pipeline run activity --topic access --available-now

Reads access log lines (Common and Combined Log Format) as record values. A *session* is the requests of one
visitor (host and user agent) with pauses of half an hour at most. Writes two tables, in Parquet:

- ``sessions``: visitor, start, end, requests, pages, first and last page, and how many steps of the funnel
  were taken, in their order.
- ``page_views``: views per path and minute, of the pages in these sessions.

A session is written once it has certainly ended: when the event-time watermark (an hour before the newest
line, since log files are often out of order within the hour) has passed its last request by half an hour.
Lines that arrive later are left out. So the newest sessions are not in the tables yet; they stay in the
query's state, in its checkpoint, and are written after later lines.

Exactly once: each batch writes one folder per table, named by the batch's id, and a batch that is run again
after a crash replaces its folders.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

LATENESS = timedelta(hours=1)
"""The distance from the newest event time read to the watermark."""
PAUSE = "30 minutes"
"""A session ends when its visitor has sent no request for this time."""

FUNNEL = (
    ("any page", r"^/"),
    ("an article", r"^/(?:blog|articles|projects|presentations)/."),
    ("a second article", r"^/(?:blog|articles|projects|presentations)/."),
    ("a download", r"^/(?:files|downloads|misc)/."),
)
"""The steps of the funnel: name, and pattern of the paths that take it. Each counts after the one before."""
ASSETS = r"\.(?:css|js|png|jpe?g|gif|ico|svg|woff2?|ttf|map|xml|txt)$"
"""Matches paths that are parts of pages rather than pages."""

# Java's regular expressions. Possessive quantifiers (*+) keep a malicious line from causing backtracking.
_LINE = (
    r'^([^ ]++) [^ ]++ [^ ]++ \[([^\]]++)\] "([A-Z]++) ([^ ?#"]++)[^"]*+" ([0-9]{3}) (?:[0-9]++|-)'
    r'(?: "[^"]*+" "([^"]*+)".*+)?'
)


def parse(records: DataFrame) -> DataFrame:
    """Return one row per request: host, agent, time, path, status; without lines of another format."""
    line = F.make_valid_utf8(F.col("value").cast("string"))
    part = [F.regexp_extract(line, _LINE, number) for number in range(7)]
    return records.select(
        part[1].alias("host"),
        part[6].alias("agent"),
        F.try_to_timestamp(part[2], F.lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("time"),
        part[4].alias("path"),
        part[5].cast("int").alias("status"),
    ).where(F.col("time").isNotNull())


def sessions_of(requests: DataFrame) -> DataFrame:
    """Return one row per session, with its requests in order."""
    request = F.struct("time", "path", "status")
    return (
        requests.withWatermark("time", f"{LATENESS.total_seconds():.0f} seconds")
        .groupBy(F.session_window("time", PAUSE).alias("session"), "host", "agent")
        .agg(F.sort_array(F.collect_list(request)).alias("requests"))
    )


def is_page(request: Column) -> Column:
    return (request["status"] < 400) & ~F.lower(request["path"]).rlike(ASSETS)


def steps_taken(pages: Column) -> Column:
    """Return a column with the number of funnel steps that these pages take, in order."""

    def step(taken: Column, page: Column) -> Column:
        takes_next = F.lit(False)
        for number, (_, pattern) in enumerate(FUNNEL):
            takes_next = takes_next | ((taken == number) & page["path"].rlike(pattern))
        return taken + takes_next.cast("int")

    return F.aggregate(pages, F.lit(0), step)


def summary_of(sessions: DataFrame) -> DataFrame:
    """Return the table ``sessions``."""
    pages = F.filter("requests", is_page)
    return sessions.select(
        "host",
        "agent",
        F.element_at("requests", 1)["time"].alias("start"),
        F.element_at("requests", -1)["time"].alias("end"),
        F.size("requests").alias("requests"),
        F.size(pages).alias("pages"),
        F.try_element_at(pages, F.lit(1))["path"].alias("first_page"),
        F.try_element_at(pages, F.lit(-1))["path"].alias("last_page"),
        steps_taken(pages).alias("steps"),
    )


def views_of(sessions: DataFrame) -> DataFrame:
    """Return the table ``page_views`` of one batch; the totals are the sums of ``views`` over all batches."""
    page = sessions.select(F.explode(F.filter("requests", is_page)).alias("page"))
    minute = F.date_trunc("minute", "page.time").alias("minute")
    return page.groupBy(minute, F.col("page.path").alias("path")).agg(F.count("*").alias("views"))


def start(
    records: DataFrame, output: str, *, available_now: bool = False, seconds: int = 5
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""
    sessions = sessions_of(parse(records))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        folder = f"batch={batch_id:08d}"
        summary_of(batch).write.mode("overwrite").parquet(f"{output}/sessions/{folder}")
        views_of(batch).write.mode("overwrite").parquet(f"{output}/page_views/{folder}")
        batch.unpersist()

    job = (
        sessions.writeStream.foreachBatch(write)
        .outputMode("append")
        .queryName("activity")
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    sessions = spark.read.parquet(f"{output}/sessions")
    views = spark.read.parquet(f"{output}/page_views")
    whole = sessions.agg(
        F.count("*").alias("sessions"),
        F.count_distinct("host", "agent").alias("visitors"),
        F.sum("requests").alias("requests"),
        F.sum("pages").alias("pages"),
        F.round(F.avg(F.col("end").cast("double") - F.col("start").cast("double")), 1).alias("mean_seconds"),
    )
    return {
        "Sessions": whole,
        "Funnel": funnel(sessions),
        f"Top {top} paths": views.groupBy("path")
        .agg(F.sum("views").alias("views"))
        .orderBy(F.col("views").desc(), "path")
        .limit(top),
        f"Top {top} first pages": sessions.where("first_page is not null")
        .groupBy("first_page")
        .agg(F.count("*").alias("sessions"))
        .orderBy(F.col("sessions").desc(), "first_page")
        .limit(top),
    }


def funnel(sessions: DataFrame) -> DataFrame:
    """Return, per step of the funnel, the number of sessions that took it."""
    numbered = F.array(
        *[F.struct(F.lit(n).alias("n"), F.lit(name).alias("step")) for n, (name, _) in _steps()]
    )
    reached = sessions.select(
        F.explode(F.filter(numbered, lambda one: one["n"] <= F.col("steps"))).alias("s")
    )
    counted = reached.groupBy("s.n", "s.step").agg(F.count("*").alias("sessions"))
    return counted.orderBy("n").select("step", "sessions")


def _steps() -> list[tuple[int, tuple[str, str]]]:
    return list(enumerate(FUNNEL, start=1))


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    views = spark.read.parquet(f"{output}/page_views")
    sessions = spark.read.parquet(f"{output}/sessions")
    hour = F.date_trunc("hour", "minute").alias("hour")
    return {
        "Page views per hour": views.groupBy(hour).agg(F.sum("views").alias("views")).orderBy("hour"),
        "Funnel: sessions that came so far": funnel(sessions),
        "Top paths": results(spark, output)["Top 10 paths"],
    }
