"""join: orders and payments in two topics, customers in a table -> which orders were paid, and when.

    nilometer pipeline run join --table customers.csv --available-now

Reads ``orders``, ``{"order": "o1", "customer": "c7", "amount": 12.5, "at": "2024-05-01T10:00:03Z"}``, and
``payments``, ``{"payment": "p1", "order": "o1", "amount": 12.5, "at": …}``, as JSON. Two kinds of join:

- stream with stream: an order matches a payment within an hour after the order. Records of both streams are
  kept in the run's state only while a match is still possible, which the event-time watermark decides (ten
  minutes before the newest time of the slower stream; what comes behind it is late). An order without a
  payment is written as unpaid when no payment can match any more; a payment without an order is left out;
- stream with table: the customer's name and country, from a CSV file with columns customer, name, country.

The table ``settled``, in Parquet, has one row per order and payment, or per unpaid order. An order or a
payment that comes again counts once. Exactly once: a batch that is run again replaces its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, microseconds, start_batches
from nilometer.pipeline.csv_table import read_table
from nilometer.pipeline.events import EventSettings, typed
from nilometer.pipeline.recognition import HEADERS, Formats


@dataclass(frozen=True)
class Settings(EventSettings):
    """What ``--set`` and ``--settings`` can change."""

    lateness: timedelta = timedelta(minutes=10)
    within: timedelta = timedelta(hours=1)
    """How long after the order a payment matches it."""


SOURCE_OPTIONS = HEADERS

ORDER = "`order` string, customer string, amount double, at timestamp"
PAYMENT = "payment string, `order` string, amount double, at timestamp"
OPEN_ORDER = "`order` string, customer string, ordered double, ordered_at timestamp, is_matched boolean"
OPEN_PAYMENT = "payment string, paid_order string, paid double, paid_at timestamp, is_matched boolean"
NAMES_OF_ORDER = {"amount": "ordered", "at": "ordered_at"}
NAMES_OF_PAYMENT = {"order": "paid_order", "amount": "paid", "at": "paid_at"}
"""The names that columns of events have beside those of the other stream."""
SETTLED = ("order", "customer", "name", "country", "ordered", "ordered_at", "payment", "paid", "paid_at")
COLUMNS = "customer,name,country"


def pairs_of(orders: DataFrame, payments: DataFrame, settings: Settings) -> DataFrame:
    """Return orders with their payments within the hour, of which one at least has the column ``is_new``."""
    within = F.expr(f"INTERVAL {microseconds(settings.within)} microseconds")
    in_time = (F.col("paid_at") >= F.col("ordered_at")) & (F.col("paid_at") <= F.col("ordered_at") + within)
    paid = payments.select(
        "payment", "paid_order", "paid", "paid_at", F.col("is_new").alias("is_new_payment")
    )
    met = orders.join(paid, (F.col("order") == F.col("paid_order")) & in_time)
    return met.where("is_new or is_new_payment")


def settled_of(pairs: DataFrame, customers: DataFrame) -> DataFrame:
    """Return the table ``settled`` of orders with their payment, or with none."""
    seconds = F.col("paid_at").cast("double") - F.col("ordered_at").cast("double")
    named = pairs.join(F.broadcast(customers), "customer", "left_outer")
    return named.select(*SETTLED, seconds.alias("seconds"))


def start(
    orders: DataFrame,
    payments: DataFrame,
    output: str,
    *,
    table: str,
    dead_letters: Mapping[str, str],
    formats: Formats | None = None,
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job. ``table`` is the path of the CSV file of customers, which is read at each start."""
    customers = read_table(orders.sparkSession, table, COLUMNS)
    order_closes = F.unix_micros("ordered_at") + microseconds(settings.within) + 1
    payment_closes = F.unix_micros("paid_at") + 1

    def write(batch: Batch) -> None:
        events = batch.on_time(F.unix_micros("at") + 1, settings, dead_letters, inputs=tuple(inputs))

        def open_and_new(name: str, schema: str, key: str, names: dict[str, str]) -> DataFrame:
            known = batch.state(name, schema).withColumn("is_new", F.lit(False))
            new = batch.without_repeats(events, known, key, name).withColumnsRenamed(names)
            new = new.withColumns({"is_matched": F.lit(False), "is_new": F.lit(True)})
            return known.unionByName(new.select(*known.columns))

        all_orders = open_and_new("orders", OPEN_ORDER, "order", NAMES_OF_ORDER)
        all_payments = open_and_new("payments", OPEN_PAYMENT, "payment", NAMES_OF_PAYMENT)
        pairs = batch.persisted(pairs_of(all_orders, all_payments, settings))
        waiting_orders = batch.persisted(_waiting(batch, all_orders, pairs, "order", order_closes))
        waiting_payments = batch.persisted(_waiting(batch, all_payments, pairs, "payment", payment_closes))
        is_paid, one = F.col("is_matched"), F.lit(1)
        batch.settle(waiting_orders, one, F.when(is_paid, "paid").otherwise("unpaid"), name="orders")
        of_order = F.when(is_paid, "of an order").otherwise("no order in the time before it")
        batch.settle(waiting_payments, one, of_order, left_out=~is_paid, name="payments")
        unpaid = waiting_orders.where("is_over and not is_matched")
        settled = pairs.unionByName(unpaid, allowMissingColumns=True)
        batch.write("settled", settled_of(settled, customers))
        for name, waiting in (("orders", waiting_orders), ("payments", waiting_payments)):
            batch.keep(name, waiting.where("not is_over").drop("is_over"))

    inputs = {
        "orders": typed(orders, ORDER, settings, formats=formats),
        "payments": typed(payments, PAYMENT, settings, formats=formats),
    }
    return start_batches("join", inputs, output, write, available_now=available_now, seconds=seconds)


def _waiting(batch: Batch, rows: DataFrame, pairs: DataFrame, key: str, closes: Column) -> DataFrame:
    """Return open and new rows: whether they have been matched, and whether no match can come any more."""
    matched = pairs.select(key).distinct().withColumn("is_met", F.lit(True))
    is_matched = F.col("is_matched") | F.coalesce("is_met", F.lit(False))
    joined = rows.drop("is_new").join(matched, key, "left_outer")
    return joined.withColumns({"is_matched": is_matched, "is_over": batch.is_over(closes)}).drop("is_met")


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
