"""activity, declared: access logs in a topic -> a table of visits -> sessions, and page views.

    nilometer pipeline declare activity
    nilometer spark pipelines run --spec activity/spark-pipeline.yml

The computations are those of the shipped job, ``nilometer.pipeline.shipped.activity``; this file only
declares the tables and what flows into them. Spark handles their order, checkpoints and retries.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from nilometer.pipeline.shipped.activity import parse, sessions_of, summary_of, views_of

spark = SparkSession.active()
RECORDS = {
    "kafka.bootstrap.servers": str(spark.conf.get("spark.nilometer.bootstrap.servers")),
    "subscribe": str(spark.conf.get("spark.nilometer.topic.access")),
    "startingOffsets": "earliest",
    "kafka.isolation.level": "read_committed",
}
# Outside of the functions: Spark analyses what maps rows by Python, and refuses to within them.
REQUESTS = parse(spark.readStream.format("nilometer").options(**RECORDS).load(), files=False)


@dp.table
def visits() -> DataFrame:
    """One row per session with its requests, once the watermark shows that the session is over."""
    return sessions_of(REQUESTS)


@dp.materialized_view
def sessions() -> DataFrame:
    """One row per session: duration, first and last page, steps of the funnel."""
    return summary_of(spark.read.table("visits"))


@dp.materialized_view
def page_views() -> DataFrame:
    """Views per path and minute."""
    return views_of(spark.read.table("visits"))
