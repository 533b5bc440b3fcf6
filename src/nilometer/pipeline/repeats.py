"""Records that were sent again, and how a reader drops them.

The sink writes at least once: a task that fails half-way is run again by Spark, and so is a batch whose end
was not noted before a crash; what the first run had sent already is then in the topic twice. Each record
carries four headers that say where it came from: the writer, the batch, Spark's partition and the row in it.
Repeats have equal headers as long as the query gives the same rows in the same order when it is run again,
as reading, selecting, filtering and joining with a table do; behind a shuffle, sort within partitions.

The writer is the query, or the one ``save`` of a batch job. A ``save`` within ``foreachBatch`` is a writer of
its own each time, since one batch may save several times: to be recognised when its batch is run again it
needs a name, the option ``writerId``, that no other ``save`` of that function has.

The functions take what ``format("nilometer")`` gives with ``includeHeaders`` (Spark's own connector, too).
"""

from __future__ import annotations

from functools import reduce
from operator import and_
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

    place = F.concat_ws("/", F.lit("at"), "topic", "partition", "offset")
    parts = [_header(name) for name in REPEAT_HEADERS]
    is_complete = reduce(and_, (part.isNotNull() for part in parts))
    return F.when(is_complete, F.concat_ws("/", F.lit("from"), *parts)).otherwise(place)


def _header(name: str) -> Column:
    """The text of a header; of several the last, that of its last writer; null where there is none."""
    from pyspark.sql import functions as F

    named = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(named, F.lit(-1))["value"].cast("string")


def drop_repeats(records: DataFrame, within: str = "1 hour") -> DataFrame:
    """Each record once. In a stream, repeats are read at most ``within`` after the first.

    That is the time of reading, not the records' own: records may come in any order of theirs, and a late one
    that was sent once is kept.
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
