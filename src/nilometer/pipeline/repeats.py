"""Records that were sent again, and how a reader drops them.

The sink writes at least once: a task that fails half-way is run again by Spark, and so is a batch whose end
was not noted before a crash; what the first run had sent already is then in the topic twice. Each record
carries four headers that say where it came from: the writer, the batch, Spark's partition and the row in it.
Repeats have equal headers as long as the query gives the same rows in the same order when it is run again,
as reading, selecting, filtering and joining with a table do; behind a shuffle, sort within partitions.

The functions take what ``format("nilometer")`` gives with ``includeHeaders`` (Spark's own connector, too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WRITER_HEADER = "nilometer.writer"
BATCH_HEADER = "nilometer.batch"
PARTITION_HEADER = "nilometer.partition"
ROW_HEADER = "nilometer.row"
REPEAT_HEADERS = (WRITER_HEADER, BATCH_HEADER, PARTITION_HEADER, ROW_HEADER)


def repeat_id() -> Column:
    """The same text for repeats of one record; for records of other writers, their place in the topic."""
    from pyspark.sql import functions as F

    values = F.map_from_entries(
        F.transform(
            F.filter("headers", lambda header: header["key"].isin(*REPEAT_HEADERS)),
            lambda header: F.struct(header["key"], header["value"].cast("string")),
        )
    )
    place = F.concat_ws("/", F.lit("at"), "topic", "partition", "offset")
    parts = [F.try_element_at(values, F.lit(name)) for name in REPEAT_HEADERS]
    return F.when(parts[-1].isNull(), place).otherwise(F.concat_ws("/", *parts))


def drop_repeats(records: DataFrame, within: str = "1 hour") -> DataFrame:
    """Each record once. In a stream, repeats come at most ``within`` after the first, by record time."""
    named = records.withColumn("repeat_id", repeat_id())
    if not records.isStreaming:
        return named.dropDuplicates(["repeat_id"]).drop("repeat_id")
    return (
        named.withWatermark("timestamp", within)
        .dropDuplicatesWithinWatermark(["repeat_id"])
        .drop("repeat_id")
    )
