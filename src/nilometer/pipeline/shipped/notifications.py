"""notifications: events and thresholds -> messages to users, in a topic from which a webhook gets them.

    nilometer pipeline run notifications --topic events --table users.csv --to notifications
    nilometer pipeline deliver --topic notifications --webhook https://example.org/messages

Reads events as JSON: ``{"id": "e1", "user": "u7", "kind": "payment", "amount": 620.0, "at":
"2024-05-01T10:00:03Z"}``. A rule has a threshold for the number of a user's events of a kind in ten minutes,
or for their sum. The batch that reaches it renders a message with the user's name, language and address, from
a CSV file with the columns user, name, language, address, and writes it to the topic as JSON, keyed by user.

A message is written once, by the batch that reaches the threshold, also if a sum falls below it and reaches
it again; and again only by a batch that is run again after a crash: then with the same ``id``, made of rule,
user and window, and ``deliver`` sends each id once. An event whose ``id`` was read before counts once. The
table ``messages``, in Parquet, has all messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, microseconds, send, start_batches, window_start_us, window_text
from nilometer.pipeline.csv_table import read_table
from nilometer.pipeline.events import EventSettings, typed
from nilometer.pipeline.recognition import HEADERS, Formats


class Rule(NamedTuple):
    """A message is written when ``measure`` of a user's events of a kind reaches the threshold."""

    name: str
    kind: str
    measure: Literal["count", "sum"]
    threshold: float
    texts: Mapping[str, str]
    """The text by language."""


RULES = (
    Rule(
        "locked-out", "login-failed", "count", 3,
        {"en": "Hello {name}, there were {count} failed logins to your account.",
         "de": "Hallo {name}, {count} Anmeldungen an Ihrem Konto sind gescheitert."},
    ),
    Rule(
        "large-payments", "payment", "sum", 500,
        {"en": "Hello {name}, you have paid {sum} within ten minutes.",
         "de": "Hallo {name}, Sie haben binnen zehn Minuten {sum} bezahlt."},
    ),
)  # fmt: skip
USUAL_LANGUAGE = "en"


@dataclass(frozen=True)
class Settings(EventSettings):
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = timedelta(minutes=10)
    window: timedelta = timedelta(minutes=10)
    rules: tuple[Rule, ...] = RULES


SOURCE_OPTIONS = HEADERS
NEEDED = ("id", "user", "kind", "at")

EVENT = "id string, user string, kind string, amount double, at timestamp"
SENT = "since timestamp, user string, kind string, sent array<string>"
"""The rules for which a user has got a message, of each window that is open."""
WINDOW = ["since", "user", "kind"]
COLUMNS = "user,name,language,address"


def amount_check(settings: Settings) -> Callable[[Mapping[str, Any]], str | None]:
    """Return what says why an event is rejected that lacks an amount; None if it may."""
    summed = frozenset(one.kind for one in settings.rules if one.measure == "sum")

    def check(event: Mapping[str, Any]) -> str | None:
        no_amount = event["kind"] in summed and event["amount"] is None
        return "no amount, which a rule of its kind sums" if no_amount else None

    return check


def tallies_of(events: DataFrame, settings: Settings) -> DataFrame:
    """Return number and sum of each user's events per kind and window."""
    since = F.timestamp_micros(window_start_us("at", settings.window)).alias("since")
    return events.groupBy(since, "user", "kind").agg(
        F.count("*").alias("count"), F.coalesce(F.sum("amount"), F.lit(0.0)).alias("sum")
    )


def reached_of(tallies: DataFrame, users: DataFrame, settings: Settings) -> DataFrame:
    """Return the tallies with the rules whose threshold they reach for the first time, as their column
    ``sent`` has the others; none for unknown users.
    """
    known = tallies.join(F.broadcast(users.withColumn("is_known", F.lit(True))), "user", "left_outer")
    reached = F.array_compact(
        F.array(
            *[
                F.when(
                    F.col("is_known")
                    & (F.col("kind") == kind)
                    & (F.col(measure) >= threshold)
                    & ~F.array_contains("sent", name),
                    F.struct(F.lit(name).alias("rule"), _text(texts).alias("text")),
                )
                for name, kind, measure, threshold, texts in settings.rules
            ]
        )
    )
    return known.withColumn("reached", reached)


def messages_of(reached: DataFrame) -> DataFrame:
    """Return a message for each rule that a tally reaches."""
    since = window_text("since")
    return reached.withColumn("reached", F.explode("reached")).select(
        F.concat_ws("/", "reached.rule", "user", since).alias("id"),
        "user",
        "reached.rule",
        "address",
        "reached.text",
        since.alias("since"),
    )


def _text(texts: Mapping[str, str]) -> Column:
    chosen = F.lit(texts.get(USUAL_LANGUAGE) or next(iter(texts.values())))
    for language, text in texts.items():
        chosen = F.when(F.col("language") == language, F.lit(text)).otherwise(chosen)
    values = {
        "count": F.col("count").cast("string"),
        "sum": F.format_string("%.2f", F.col("sum")),
        "name": F.coalesce("name", "user"),  # last: what a user's name has in braces stays as it is
    }
    for name, value in values.items():
        chosen = F.replace(chosen, F.lit(f"{{{name}}}"), value)
    return chosen


def start(
    records: DataFrame,
    output: str,
    *,
    to_topic: Mapping[str, str],
    dead_letters: Mapping[str, str],
    table: str,
    formats: Formats | None = None,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job. ``to_topic`` and ``dead_letters`` are the sink's options: brokers and a topic."""
    users = read_table(records.sparkSession, table, COLUMNS)
    closes = window_start_us("at", settings.window) + microseconds(settings.window)

    def write(batch: Batch) -> None:
        events = batch.on_time(closes, settings, dead_letters)
        known = batch.state("events", EVENT)
        new = batch.without_repeats(events, known, "id").select(*known.columns)
        counted = batch.persisted(known.unionByName(new))
        tallies = tallies_of(counted, settings).join(batch.state("messages", SENT), WINDOW, "left_outer")
        tallies = tallies.withColumn("sent", F.coalesce("sent", F.array().cast("array<string>")))
        is_over = batch.is_over(F.unix_micros("since") + microseconds(settings.window))
        reached = batch.persisted(reached_of(tallies, users, settings).withColumn("is_over", is_over))
        sent = F.array_union("sent", F.transform("reached", lambda one: one["rule"]))
        written = batch.write("messages", messages_of(reached).coalesce(1))
        outcome = (
            F.when(F.size(sent) > 0, "in a message")
            .when(F.col("is_known"), "no threshold was reached")
            .otherwise("the user is not in the table")
        )
        batch.settle(reached, F.col("count"), outcome, left_out=F.size(sent) == 0)
        batch.keep("events", counted.where(~batch.is_over(closes)))
        still_open = reached.where("not is_over").select(*WINDOW, sent.alias("sent"))
        batch.keep("messages", still_open.where("size(sent) > 0").coalesce(1))
        record = written.select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
        send(record, to_topic, "messages", once=False)

    lines = typed(records, EVENT, settings, needed=NEEDED, formats=formats, check=amount_check(settings))
    return start_batches("notifications", lines, output, write, available_now=available_now, seconds=seconds)


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    messages = spark.read.parquet(f"{output}/messages")
    return {
        "Messages by rule": messages.groupBy("rule")
        .agg(F.count("*").alias("messages"), F.count_distinct("user").alias("users"))
        .orderBy("rule"),
        f"Newest {top} messages": messages.orderBy(F.col("since").desc(), "id")
        .select("since", "user", "text")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    messages = spark.read.parquet(f"{output}/messages")
    hour = F.date_trunc("hour", F.to_timestamp("since")).alias("hour")
    return {"Messages per hour": messages.groupBy(hour).pivot("rule").count().na.fill(0).orderBy("hour")}
