"""The writers of ``df.write.format("nilometer")`` and ``df.writeStream.format("nilometer")``.

Implements Spark's interface for Python data sinks and converts Arrow columns to records; ``cluster_writer``
sends them. Writers are pickled to executors, so they contain options only.

At least once by default: a task ends only when its records are acknowledged by all in-sync replicas, and the
producer is idempotent, so that its own retries send nothing twice; but tasks and batches that Spark runs
again send their records again. The headers described in :mod:`~nilometer.pipeline.repeats` identify such
records. With the option ``exactlyOnce`` each task is a transaction: see
:mod:`~nilometer.pipeline.sink.transactional_writer`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from nilometer.pipeline.errors import OptionError, SinkError
from nilometer.pipeline.repeats import (
    BATCH_HEADER,
    PARTITION_HEADER,
    REPEAT_HEADERS,
    ROW_HEADER,
    WRITER_HEADER,
)
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing
from nilometer.pipeline.sink.sink_options import SinkOptions, check_columns, parse_sink_options
from nilometer.pipeline.sink.transactional_writer import TaskTransaction, TransactionalWriter

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""Spark's local properties of a task: the ids of its query and micro-batch."""
TRANSACTIONAL_ID_PREFIX = "nilometer-sink"
CHUNK_ROWS = 10_000


@dataclass
class Written(WriterCommitMessage):
    """The commit message of a task that has written its records."""

    partition: int
    records: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a task's records, for their headers."""

    writer: bytes
    batch: bytes
    partition: bytes

    def headers(self, row: int) -> tuple[tuple[str, bytes | None], ...]:
        return (
            (WRITER_HEADER, self.writer),
            (BATCH_HEADER, self.batch),
            (PARTITION_HEADER, self.partition),
            (ROW_HEADER, b"%d" % row),
        )


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", "overwrite", "a topic can only be appended to: use mode('append')")
        self._options = _checked(options, schema)
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_partition(self._options, iterator, self._write_id)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each row that a query outputs as a record, in the modes append, update and complete."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = _checked(options, schema)

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> Written:
        return write_partition(self._options, iterator, "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: a task returns only when its records are acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: sent records stay, and the batch is written again with the same headers."""


def write_partition(options: SinkOptions, batches: Iterator[pyarrow.RecordBatch], write_id: str) -> Written:
    """Write the rows of one task, on an executor. Raises SinkError.

    ``write_id`` identifies one ``save``; empty for a stream's sink.
    """
    task = TaskContext.get()
    partition = task.partitionId() if task is not None else 0
    origin = _origin(task, options, write_id) if options.repeat_headers else None
    writer = ClusterWriter.shared(options.producer)
    rows = _outgoing(options, batches, origin)
    if options.exactly_once:
        transaction = _transaction(task, options, write_id)
        return Written(
            partition, TransactionalWriter(writer, dict(options.producer), transaction).write(rows)
        )
    return Written(partition, writer.write(rows))


def _transaction(task: Any, options: SinkOptions, write_id: str) -> TaskTransaction:
    """Return the transactional id and batch number for a task.

    In a stream, and in a ``save`` with the option ``writerId`` within ``foreachBatch``, they are the same
    when Spark runs the batch again. Every other ``save`` has its own ids, so that only retries of its tasks
    are recognised. Raises SinkError if a ``save`` within ``foreachBatch`` has no ``writerId``.
    """
    query = task.getLocalProperty(QUERY_PROPERTY) or ""
    batch = int(task.getLocalProperty(BATCH_PROPERTY) or 0)
    if query and write_id and not options.writer_id:
        raise SinkError("exactlyOnce within foreachBatch needs the option writerId: a name for this save")
    names = (query, options.writer_id if query else write_id)
    writer = "/".join(filter(None, names))
    return TaskTransaction(f"{TRANSACTIONAL_ID_PREFIX}/{writer}/{task.partitionId()}", batch if query else 0)


def _origin(task: Any, options: SinkOptions, write_id: str) -> Origin:
    """Return the origin of a task's records.

    ``write_id`` identifies one ``save``, in a batch job or in ``foreachBatch``; empty for a stream's sink.
    """
    query = task.getLocalProperty(QUERY_PROPERTY) or ""
    batch = task.getLocalProperty(BATCH_PROPERTY) or "0"
    writer = "/".join(filter(None, (query, options.writer_id or write_id)))
    return Origin(writer.encode(), batch.encode(), b"%d" % task.partitionId())


def _outgoing(
    options: SinkOptions, batches: Iterator[pyarrow.RecordBatch], origin: Origin | None
) -> Iterator[Sequence[Outgoing]]:
    row = 0
    for whole in batches:
        for start in range(0, whole.num_rows, CHUNK_ROWS):
            batch = whole.slice(start, CHUNK_ROWS)
            yield _records(options, batch, origin, row)
            row += batch.num_rows


def _records(
    options: SinkOptions, batch: pyarrow.RecordBatch, origin: Origin | None, first_row: int
) -> list[Outgoing]:
    columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
    count = batch.num_rows
    nothing: list[Any] = [None] * count
    topic_option = options.topic
    topics: list[str | None] = (
        columns["topic"].to_pylist() if topic_option is None else [topic_option] * count
    )
    partitions: list[int | None] = columns["partition"].to_pylist() if "partition" in columns else nothing
    keys = _as_bytes(columns["key"]) if "key" in columns else nothing
    values = _as_bytes(columns["value"])
    headers: list[list[dict[str, Any]] | None] = (
        columns["headers"].to_pylist() if "headers" in columns else nothing
    )
    records: list[Outgoing] = []
    for index, (topic, partition, key, value, own) in enumerate(
        zip(topics, partitions, keys, values, headers, strict=True)
    ):
        if topic is None:
            raise SinkError(f"row {first_row + index} of a task has no topic: its column topic is null")
        # Drop the repeat headers of a record that another sink wrote and that is forwarded.
        kept = tuple((one["key"], one["value"]) for one in own or () if one["key"] not in REPEAT_HEADERS)
        more = origin.headers(first_row + index) if origin is not None else ()
        records.append(Outgoing(topic, partition, key, value, kept + more))
    return records


def _as_bytes(column: pyarrow.Array) -> list[bytes | None]:
    import pyarrow as pa

    return (column if pa.types.is_binary(column.type) else column.cast(pa.binary())).to_pylist()


def _checked(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = parse_sink_options(given)
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields}, options)
    return options
