"""activity: access logs in a topic -> sessions, page views, funnels and top paths.

    nilometer pipeline run activity --topic access --available-now

Reads access log lines as record values: of Common and Combined Log Format, of JSON, or of your own format
(``--formats``) with an event time and the columns host, path and status, if wanted method and agent. A
*session* is the requests of one visitor (host and user agent) with pauses of half an hour at most. Writes two
tables, in Parquet:

- ``sessions``: visitor, start, end, requests, pages, first and last page, and how many steps of the funnel
  were taken, in their order.
- ``page_views``: views per path and minute, of the pages in these sessions.

A session is written once it has certainly ended: when the event-time watermark (an hour before the newest
line, since log files are often out of order within the hour) has passed its last request by half an hour.
Requests that arrive later are counted as late, and lines that are no request go to the topic of dead letters.
The newest sessions are not in the tables yet: they are in the run's state, and are written after later lines.
``--finish`` writes them as they are.

Exactly once: each batch writes one folder per table, named by the batch's id, and a batch that is run again
after a crash replaces its folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, RunFiles, microseconds, start_batches
from nilometer.pipeline.events import BLANK_REASON, NO_FORMAT, EventSettings, ahead_reason, record_of, taken
from nilometer.pipeline.recognition import HEADERS, Formats, recognise, tally_in


class Step(NamedTuple):
    """A step of the funnel: its name, and the pattern of the paths that take it."""

    name: str
    pattern: str


FUNNEL = (
    Step("any page", r"^/"),
    Step("an article", r"^/(?:blog|articles|projects|presentations)/."),
    Step("a second article", r"^/(?:blog|articles|projects|presentations)/."),
    Step("a download", r"^/(?:files|downloads|misc)/."),
)
"""Each step counts after the one before."""
ASSETS = r"\.(?:css|js|png|jpe?g|gif|ico|svg|woff2?|ttf|map|xml|txt)$"
"""Matches paths that are parts of pages rather than pages."""


@dataclass(frozen=True)
class Settings(EventSettings):
    """What ``--set`` and ``--settings`` can change. Patterns are Java's."""

    lateness: timedelta = timedelta(hours=1)
    pause: timedelta = timedelta(minutes=30)
    """A session ends when its visitor has sent no request for this time."""
    funnel: tuple[Step, ...] = FUNNEL
    assets: str = ASSETS


SOURCE_OPTIONS = HEADERS


def lines_of(
    records: DataFrame,
    formats: Formats | None = None,
    settings: Settings = Settings(),
    *,
    files: bool | None = None,
) -> DataFrame:
    """Return one row per record; the format of a line that is no request is ``unparsed``."""

    def field(name: str) -> Column:
        return F.try_element_at("fields", F.lit(name))

    # A request that is no HTTP has no method, and the whole request in the place of a path.
    is_http = F.coalesce(field("method").rlike("^[A-Z]+$"), field("request").isNull())
    found = recognise(records, formats, files=files, raw=True).withColumns(
        {
            "host": field("host"),
            "agent": F.coalesce(field("agent"), F.lit("")),
            "path": F.when(is_http, field("path")),
            "status": field("status").try_cast("int"),
        }
    )
    has_all = F.coalesce(
        F.expr("event_time is not null and host is not null and path != '' and status is not null"),
        F.lit(False),
    )
    is_ahead = ahead_reason("event_time", "ingested", settings.ahead)
    reason = (
        F.when(F.col("format") == "blank", BLANK_REASON)
        .when(F.col("format") == "unparsed", NO_FORMAT)
        .when(~has_all, "no request: time, host, path or status is missing")
        .otherwise(is_ahead)
    )
    is_request = has_all | (F.col("format") == "blank")
    fate = F.when(reason == BLANK_REASON, "left out").when(reason.isNotNull(), "rejected")
    return found.select(
        F.when(is_request, F.col("format")).otherwise("unparsed").alias("format"),
        "source",
        "line",
        "host",
        "agent",
        F.col("event_time").alias("time"),
        "path",
        "status",
        record_of(fate, reason, settings),
    )


def requests_of(lines: DataFrame) -> DataFrame:
    return taken(lines).select("host", "agent", "time", "path", "status")


def parse(records: DataFrame, formats: Formats | None = None, *, files: bool | None = None) -> DataFrame:
    """Return one row per request: host, agent, time, path, status; without lines that are no request."""
    return requests_of(lines_of(records, formats, files=files))


def sessions_of(requests: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return one row per session, with its requests in order; of a stream, when it has certainly ended."""
    request = F.struct("time", "path", "status")
    pause = f"{microseconds(settings.pause)} microseconds"
    return (
        requests.withWatermark("time", f"{microseconds(settings.lateness)} microseconds")
        .groupBy(F.session_window("time", pause).alias("session"), "host", "agent")
        .agg(F.sort_array(F.collect_list(request)).alias("requests"))
    )


SESSION = "host string, agent string, requests array<struct<time: timestamp, path: string, status: int>>"


def pages_of(settings: Settings) -> Column:
    """Return the column with the pages among a session's requests."""
    assets = settings.assets

    def is_page(request: Column) -> Column:
        return (request["status"] < 400) & ~F.lower(request["path"]).rlike(assets)

    return F.filter("requests", is_page)


def steps_taken(pages: Column, funnel: Sequence[Step] = FUNNEL) -> Column:
    """Return a column with the number of funnel steps that these pages take, in order."""

    def step(taken: Column, page: Column) -> Column:
        takes_next = F.lit(False)
        for number, (_, pattern) in enumerate(funnel):
            takes_next = takes_next | ((taken == number) & page["path"].rlike(pattern))
        return taken + takes_next.cast("int")

    return F.aggregate(pages, F.lit(0), step)


def summary_of(sessions: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return the table ``sessions``."""
    pages = pages_of(settings)
    return sessions.select(
        "host",
        "agent",
        F.element_at("requests", 1)["time"].alias("start"),
        F.element_at("requests", -1)["time"].alias("end"),
        F.size("requests").alias("requests"),
        F.size(pages).alias("pages"),
        F.try_element_at(pages, F.lit(1))["path"].alias("first_page"),
        F.try_element_at(pages, F.lit(-1))["path"].alias("last_page"),
        steps_taken(pages, settings.funnel).alias("steps"),
    )


def views_of(sessions: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return the table ``page_views`` of one batch; the totals are the sums of ``views`` over all batches."""
    page = sessions.select(F.explode(pages_of(settings)).alias("page"))
    minute = F.date_trunc("minute", "page.time").alias("minute")
    return page.groupBy(minute, F.col("page.path").alias("path")).agg(F.count("*").alias("views"))


def start(
    records: DataFrame,
    output: str,
    *,
    dead_letters: Mapping[str, str],
    formats: Formats | None = None,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""
    pause = microseconds(settings.pause)

    def write(batch: Batch) -> None:
        batch.tally = tally_in(batch.records)
        lines = batch.on_time(F.unix_micros("time") + pause, settings, dead_letters, time="time")
        known = batch.state("sessions", SESSION).select("host", "agent", F.inline("requests"))
        sessions = sessions_of(known.unionByName(requests_of(lines)), settings).drop("session")
        last = F.element_at("requests", -1)["time"]
        sessions = batch.persisted(sessions.withColumn("is_over", batch.is_over(F.unix_micros(last) + pause)))
        batch.settle(sessions, F.size("requests"), "in a session")
        ended = sessions.where("is_over")
        batch.write("sessions", summary_of(ended, settings))
        batch.write("page_views", views_of(ended, settings))
        batch.keep("sessions", sessions.where("not is_over").drop("is_over"))

    lines = lines_of(records, formats, settings)
    return start_batches("activity", lines, output, write, available_now=available_now, seconds=seconds)


def finish(spark: SparkSession, output: str, *, settings: Settings = Settings()) -> None:
    """Write the sessions that have not ended."""
    files = RunFiles(spark, output)
    sessions = files.open_rows("sessions", SESSION)
    if sessions is not None:
        files.write_open("sessions", summary_of(sessions, settings))
        files.write_open("page_views", views_of(sessions, settings))


def results(
    spark: SparkSession, output: str, top: int = 10, *, settings: Settings = Settings()
) -> dict[str, DataFrame]:
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
        "Funnel": funnel(sessions, settings),
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


def funnel(sessions: DataFrame, settings: Settings = Settings()) -> DataFrame:
    """Return, per step of the funnel, the number of sessions that took it."""
    steps = enumerate(settings.funnel, start=1)
    numbered = F.array(*[F.struct(F.lit(n).alias("n"), F.lit(one.name).alias("step")) for n, one in steps])
    reached = sessions.select(
        F.explode(F.filter(numbered, lambda one: one["n"] <= F.col("steps"))).alias("s")
    )
    counted = reached.groupBy("s.n", "s.step").agg(F.count("*").alias("sessions"))
    return counted.orderBy("n").select("step", "sessions")


def charts(spark: SparkSession, output: str, *, settings: Settings = Settings()) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    views = spark.read.parquet(f"{output}/page_views")
    sessions = spark.read.parquet(f"{output}/sessions")
    hour = F.date_trunc("hour", "minute").alias("hour")
    return {
        "Page views per hour": views.groupBy(hour).agg(F.sum("views").alias("views")).orderBy("hour"),
        "Funnel: sessions that came so far": funnel(sessions, settings),
        "Top paths": results(spark, output, settings=settings)["Top 10 paths"],
    }
