"""Runs streaming queries that read a topic to its present end and write Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nilometer.pipeline.source.cluster.cluster_source import StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def stream_reader(options: dict[str, str]) -> StreamReader:
    return StreamReader(options, SCHEMA)


class Stream:
    """A query that writes Parquet files and its checkpoint to a folder; it can be run several times."""

    def __init__(
        self, spark: SparkSession, folder: Path, options: dict[str, str], connector: str = "nilometer"
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._connector = connector
        self.options = {"startingOffsets": "earliest", **options}

    def frame(self) -> DataFrame:
        return self._spark.readStream.format(self._connector).options(**self.options).load()

    def run(self, change: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> StreamingQuery:
        writer = change(self.frame()).writeStream.format("parquet").option("path", f"{self._folder}/rows")
        return self._to_the_end(writer)

    def run_with(self, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Run the query with ``write`` for each batch instead of writing files; raise its exception."""
        return self._to_the_end(self.frame().writeStream.foreachBatch(write))

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(f"{self._folder}/rows")

    def values(self) -> list[bytes]:
        return values_of(self.rows())

    def _to_the_end(self, writer: Any) -> StreamingQuery:
        query = (
            writer.option("checkpointLocation", f"{self._folder}/checkpoint").trigger(availableNow=True)
        ).start()
        query.awaitTermination()
        return query


def values_of(frame: DataFrame) -> list[bytes]:
    return [bytes(row.value) for row in frame.orderBy("partition", "offset").select("value").collect()]
