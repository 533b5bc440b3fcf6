"""Repeats: records that the sink sent again; how a reader drops them.

The sink writes at least once: Spark runs a task again that fails half-way, and a batch whose end was not
recorded before a crash; the records that the first run had sent are then in the topic twice. Each record has
four headers with its origin: the writer, the batch, Spark's partition and the row in it. Repeats have equal
headers if the query returns the same rows in the same order when it is run again, as reading, selecting,
filtering and joining with a table do; after a shuffle, sort within partitions.

The writer is the query, or the one ``save`` of a batch job. Each ``save`` within ``foreachBatch`` is another
writer, since one batch may save several times: to be recognised when its batch is run again it needs a name,
the option ``writerId``, that no other ``save`` of that function has.

The functions take DataFrames of ``format("nilometer")`` with ``includeHeaders``, or of Spark's connector.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WRITER_HEADER = "nilometer.writer"
BATCH_HEADER = "nilometer.batch"
PARTITION_HEADER = "nilometer.partition"
ROW_HEADER = "nilometer.row"
REPEAT_HEADERS = (WRITER_HEADER, BATCH_HEADER, PARTITION_HEADER, ROW_HEADER)


def repeat_id() -> Column:
    """Return a column that is equal for repeats of one record, from the headers.

    For a record without them it is made of topic, partition and offset.
    """
    from pyspark.sql import functions as F

    place = F.concat_ws("/", F.lit("at"), "topic", "partition", "offset")
    parts = [_header(name) for name in REPEAT_HEADERS]
    is_complete = reduce(lambda left, right: left & right, (part.isNotNull() for part in parts))
    return F.when(is_complete, F.concat_ws("/", F.lit("from"), *parts)).otherwise(place)


def _header(name: str) -> Column:
    """Return a column with a header's text, the last one if there are several; null if there is none."""
    from pyspark.sql import functions as F

    named = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def drop_repeats(records: DataFrame, within: str = "1 hour") -> DataFrame:
    """Return the records without repeats; in a stream, repeats read at most ``within`` after the first one.

    ``within`` is counted in time of reading, not in the records' timestamps, so that a late record that was
    sent once is kept.
    """
    from pyspark.sql import functions as F

    named = records.withColumn("repeat_id", repeat_id())
    if not records.isStreaming:
        return named.dropDuplicates(["repeat_id"]).drop("repeat_id")
    return (
        named.withColumn("read_at", F.current_timestamp())
        .withWatermark("read_at", within)
        .dropDuplicatesWithinWatermark(["repeat_id"])
        .drop("repeat_id", "read_at")
    )
