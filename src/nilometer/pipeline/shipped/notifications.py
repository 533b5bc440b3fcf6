"""notifications: events and thresholds -> messages to users, in a topic from which a webhook gets them.

    nilometer pipeline run notifications --topic events --table users.csv --to notifications
    nilometer pipeline deliver --topic notifications --webhook https://example.org/messages

Reads events as JSON: ``{"id": "e1", "user": "u7", "kind": "payment", "amount": 620.0, "at":
"2024-05-01T10:00:03Z"}``. A rule has a threshold for the number of a user's events of a kind in ten minutes,
or for their sum. The batch that reaches it renders a message with the user's name, language and address, from
a CSV file with the columns user, name, language, address, and writes it to the topic as JSON, keyed by user.

At least once: every batch that adds events to a window above its threshold writes the message again, and so
does a batch that is run again after a crash. These messages all have the same ``id``, made of rule, user and
window, and ``deliver`` sends each id once. The table ``messages``, in Parquet, contains all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.recognition import HEADERS, Formats, counted, fitting, typed

LATENESS = timedelta(minutes=10)
"""The distance from the newest event's time to the watermark, which ends windows."""


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
class Settings:
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = LATENESS
    window: timedelta = timedelta(minutes=10)
    rules: tuple[Rule, ...] = RULES


SOURCE_OPTIONS = HEADERS
NEEDED = ("id", "user", "kind", "at")

EVENT = "id string, user string, kind string, amount double, at timestamp"
USER = "user string, name string, language string, address string"


def parse(records: DataFrame) -> DataFrame:
    """Return one row per event; without records that are no complete event."""
    return fitting(typed(records, EVENT, "event", needed=NEEDED))


def tallies_of(events: DataFrame, settings: Settings | None = None) -> DataFrame:
    """Return number and sum of each user's events per kind and window."""
    settings = settings or Settings()
    window = F.window("at", f"{settings.window.total_seconds():.0f} seconds").alias("window")
    return (
        events.withWatermark("at", f"{settings.lateness.total_seconds():.0f} seconds")
        .groupBy(window, "user", "kind")
        .agg(F.count("*").alias("count"), F.coalesce(F.sum("amount"), F.lit(0.0)).alias("sum"))
    )


def messages_of(tallies: DataFrame, users: DataFrame, settings: Settings | None = None) -> DataFrame:
    """Return a message for each rule whose threshold is reached; none for users who are not in the table."""
    known = tallies.join(F.broadcast(users), "user")
    reached = F.array_compact(
        F.array(
            *[
                F.when(
                    (F.col("kind") == kind) & (F.col(measure) >= threshold),
                    F.struct(F.lit(name).alias("rule"), _text(texts).alias("text")),
                )
                for name, kind, measure, threshold, texts in (settings or Settings()).rules
            ]
        )
    )
    since = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ssXXX")
    return known.withColumn("reached", F.explode(reached)).select(
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
        "name": F.coalesce("name", "user"),
        "count": F.col("count").cast("string"),
        "sum": F.format_string("%.2f", F.col("sum")),
    }
    for name, value in values.items():
        chosen = F.replace(chosen, F.lit(f"{{{name}}}"), value)
    return chosen


def start(
    records: DataFrame,
    output: str,
    *,
    to_topic: Mapping[str, str],
    table: str,
    formats: Formats | None = None,
    settings: Settings | None = None,
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job. ``to_topic`` are the sink's options: brokers and topic of the messages."""
    users = records.sparkSession.read.schema(USER).option("header", "true").csv(table)

    def write(batch: DataFrame, batch_id: int) -> None:
        kept = f"{output}/messages/batch={batch_id:08d}"
        messages_of(batch, users, settings).coalesce(1).write.mode("overwrite").parquet(kept)
        messages = batch.sparkSession.read.parquet(kept)
        record = messages.select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("value"))
        record.write.format("nilometer").options(**{"writerId": "messages", **to_topic}).mode("append").save()

    events = counted(typed(records, EVENT, "event", needed=NEEDED, formats=formats))
    job = (
        tallies_of(fitting(events), settings)
        .writeStream.foreachBatch(write)
        .outputMode("update")
        .queryName("notifications")
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    messages = spark.read.parquet(f"{output}/messages")
    return {
        "Messages by rule": messages.groupBy("rule")
        .agg(F.count_distinct("id").alias("messages"), F.count_distinct("user").alias("users"))
        .orderBy("rule"),
        f"Newest {top} messages": messages.groupBy("id", "user", "since")
        .agg(F.min_by("text", "batch").alias("text"))
        .orderBy(F.col("since").desc(), "id")
        .select("since", "user", "text")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    messages = spark.read.parquet(f"{output}/messages").dropDuplicates(["id"])
    hour = F.date_trunc("hour", F.to_timestamp("since")).alias("hour")
    return {"Messages per hour": messages.groupBy(hour).pivot("rule").count().na.fill(0).orderBy("hour")}
