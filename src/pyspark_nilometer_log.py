"""Spark finds this module by its name and with it ``format("nilometer-log")``: nothing has to be registered.

Spark imports every module called ``pyspark_*`` when a session looks for data sources, and an exception in one
of them hides the sources of all. So nothing is imported here but what Spark itself has loaded already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Segment folders, read without brokers."""

    @classmethod
    def name(cls) -> str:
        return "nilometer-log"

    def schema(self) -> str:
        from nilometer.pipeline.source.log_folders.log_source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from nilometer.pipeline.source.log_folders.log_source import batch_reader

        return batch_reader(self.options, schema)
