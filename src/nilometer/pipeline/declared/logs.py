"""logs, declared: log lines in a topic -> a table of the parsed lines -> counts of them.

    nilometer pipeline declare logs
    nilometer spark pipelines run --spec logs/spark-pipeline.yml

The computations are those of the shipped job, ``nilometer.pipeline.shipped.logs``; this file only declares
the tables and what flows into them. Spark handles their order, checkpoints and retries.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from nilometer.pipeline.shipped.logs import count, parse

spark = SparkSession.active()
RECORDS = {
    "kafka.bootstrap.servers": str(spark.conf.get("spark.nilometer.bootstrap.servers")),
    "subscribe": str(spark.conf.get("spark.nilometer.topic.logs")),
    "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed",
}
# Outside of the function: Spark analyses what maps rows by Python, and refuses to within it.
LINES = parse(spark.readStream.format("nilometer").options(**RECORDS).load(), files=False)


@dp.table
def lines() -> DataFrame:
    """One row per record."""
    return LINES


@dp.materialized_view
def counts() -> DataFrame:
    """Lines per format and minute, per format and status or level, per format and path or program."""
    return count(spark.read.table("lines"))
