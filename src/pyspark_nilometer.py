"""Spark finds this module by its name and with it ``format("nilometer")``: nothing needs to be registered.

Spark imports every module called ``pyspark_*`` when a session looks for data sources, and an exception in one
of them hides the sources of all. So nothing is imported here but what Spark itself has loaded already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Topics, with the columns and options of Spark's Kafka source; no jar."""

    @classmethod
    def name(cls) -> str:
        return "nilometer"

    def schema(self) -> str:
        from nilometer.pipeline.source.cluster.cluster_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from nilometer.pipeline.source.cluster.cluster_source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from nilometer.pipeline.source.cluster.cluster_source import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from nilometer.pipeline.sink.spark_sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from nilometer.pipeline.sink.spark_sink import StreamWriter

        return StreamWriter(self.options, schema)
