"""join: orders and payments in two topics, customers in a table -> which orders were paid, and when.

    nilometer pipeline run join --table customers.csv --available-now

Reads ``orders``, ``{"order": "o1", "customer": "c7", "amount": 12.5, "at": "2024-05-01T10:00:03Z"}``, and
``payments``, ``{"payment": "p1", "order": "o1", "amount": 12.5, "at": …}``, as JSON. Two kinds of join:

- stream with stream: an order matches a payment within an hour after the order. Records of both streams are
  kept in the query's state only while a match is still possible, which the event-time watermarks decide (ten
  minutes before the newest time of each stream; the slower one counts). An order without a payment is written
  as unpaid when no payment can match any more;
- stream with table: the customer's name and country, from a CSV file with columns customer, name, country.

The table ``settled``, in Parquet, has one row per order and payment, or per unpaid order. Exactly once: a
batch that is run again replaces its folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.recognition import HEADERS, METRICS, Formats, counted, fitting, typed

LATENESS = timedelta(minutes=10)
"""The distance from the newest event time of a stream to its watermark."""


@dataclass(frozen=True)
class Settings:
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = LATENESS
    within: timedelta = timedelta(hours=1)
    """How long after the order a payment matches it."""


SOURCE_OPTIONS = HEADERS

ORDER = "`order` string, customer string, amount double, at timestamp"
PAYMENT = "payment string, `order` string, amount double, at timestamp"
CUSTOMER = "customer string, name string, country string"


def parse(records: DataFrame, schema: str) -> DataFrame:
    """Return one row per order or payment; without records that are no complete ones."""
    return fitting(typed(records, schema, "record"))


def settled_of(
    orders: DataFrame, payments: DataFrame, customers: DataFrame, settings: Settings | None = None
) -> DataFrame:
    settings = settings or Settings()
    late = f"{settings.lateness.total_seconds():.0f} seconds"
    within = f"INTERVAL {settings.within.total_seconds():.0f} seconds"
    ordered = orders.select(
        "order", "customer", F.col("amount").alias("ordered"), F.col("at").alias("ordered_at")
    ).withWatermark("ordered_at", late)
    paid = payments.select(
        F.col("order").alias("paid_order"),
        "payment",
        F.col("amount").alias("paid"),
        F.col("at").alias("paid_at"),
    ).withWatermark("paid_at", late)
    in_time = F.expr(f"paid_at >= ordered_at AND paid_at <= ordered_at + {within}")
    met = ordered.join(paid, (F.col("order") == F.col("paid_order")) & in_time, "left_outer")
    return met.join(F.broadcast(customers), "customer", "left_outer").select(
        "order",
        "customer",
        "name",
        "country",
        "ordered",
        "ordered_at",
        "payment",
        "paid",
        "paid_at",
        (F.col("paid_at").cast("double") - F.col("ordered_at").cast("double")).alias("seconds"),
    )


def start(
    orders: DataFrame,
    payments: DataFrame,
    output: str,
    *,
    table: str,
    formats: Formats | None = None,
    settings: Settings | None = None,
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job. ``table`` is the path of the CSV file of customers, which is read at each start."""
    spark = orders.sparkSession
    customers = spark.read.schema(CUSTOMER).option("header", "true").csv(table)
    ordered = counted(typed(orders, ORDER, "order", formats=formats), f"{METRICS}-orders")
    paid = counted(typed(payments, PAYMENT, "payment", formats=formats), f"{METRICS}-payments")

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{output}/settled/batch={batch_id:08d}")

    job = (
        settled_of(fitting(ordered), fitting(paid), customers, settings)
        .writeStream.foreachBatch(write)
        .outputMode("append")
        .queryName("join")
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    settled = spark.read.parquet(f"{output}/settled")
    is_paid = F.col("payment").isNotNull()
    by_country = F.coalesce("country", F.lit("unknown")).alias("country")
    return {
        "Orders by country": settled.groupBy(by_country)
        .agg(
            F.count_distinct("order").alias("orders"),
            F.count_distinct(F.when(~is_paid, F.col("order"))).alias("unpaid"),
            F.round(F.sum("paid"), 2).alias("paid"),
            F.round(F.avg("seconds"), 1).alias("mean_seconds"),
        )
        .orderBy(F.col("orders").desc(), "country"),
        f"Largest {top} unpaid orders": settled.where(~is_paid)
        .orderBy(F.col("ordered").desc(), "order")
        .select("order", "customer", "name", "ordered", "ordered_at")
        .limit(top),
    }


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    settled = spark.read.parquet(f"{output}/settled")
    is_paid = F.col("payment").isNotNull()
    hour = F.date_trunc("hour", "ordered_at").alias("hour")
    minutes = F.floor(F.col("seconds") / 300).cast("int") * 5
    return {
        "Orders per hour": settled.groupBy(hour)
        .agg(F.count_if(is_paid).alias("paid"), F.count_if(~is_paid).alias("unpaid"))
        .orderBy("hour"),
        "Payments by minutes after the order": settled.where(is_paid)
        .groupBy(minutes.alias("minutes"))
        .agg(F.count("*").alias("payments"))
        .orderBy("minutes"),
    }
