"""metrics, declared: measurements in a topic -> a table of rollups -> alerts in a topic, and totals.

    nilometer pipeline declare metrics
    nilometer spark pipelines run --spec metrics/spark-pipeline.yml

The computations are those of the shipped job, ``nilometer.pipeline.shipped.metrics``; this file only declares
the tables and what flows into them. Spark handles their order, checkpoints and retries.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from nilometer.pipeline.shipped.metrics import alerts_of, parse, rollups_of

spark = SparkSession.active()
SERVERS = {"kafka.bootstrap.servers": str(spark.conf.get("spark.nilometer.bootstrap.servers"))}
MEASUREMENTS = {
    "subscribe": str(spark.conf.get("spark.nilometer.topic.measurements")),
    "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed",
}
ALERTS = {"topic": str(spark.conf.get("spark.nilometer.topic.alerts"))}
# Outside of the functions: Spark analyses what maps rows by Python, and refuses to within them.
MEASURED = parse(spark.readStream.format("nilometer").options(**SERVERS, **MEASUREMENTS).load(), files=False)


@dp.table
def rollups() -> DataFrame:
    """One row per minute, service and metric, once the watermark has passed the minute's end."""
    return rollups_of(MEASURED)


dp.create_sink("alerts_topic", "nilometer", {**SERVERS, **ALERTS})


@dp.append_flow(target="alerts_topic")
def alerts() -> DataFrame:
    """The alerts of the rollups as records; delivered at least once, each with an id."""
    return alerts_of(spark.readStream.table("rollups"))


@dp.materialized_view
def services() -> DataFrame:
    """One row per service and metric: count, mean and maximum over all minutes."""
    return (
        spark.read.table("rollups")
        .groupBy("service", "metric")
        .agg(
            F.sum("count").alias("count"),
            (F.sum("sum") / F.sum("count")).alias("mean"),
            F.max("greatest").alias("greatest"),
        )
    )
