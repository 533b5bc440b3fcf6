"""The writers of ``df.write.format("nilometer")`` and ``df.writeStream.format("nilometer")``.

Implements Spark's interface for Python data sinks and converts Arrow columns to records; ``cluster_writer``
sends them. Writers are pickled to executors, so they contain options only.

At least once by default: a task ends only when its records are acknowledged by all in-sync replicas, and the
producer is idempotent, so that its own retries send nothing twice; but tasks and batches that Spark runs
again send their records again. The headers described in :mod:`~nilometer.pipeline.repeats` identify such
records. With the option ``exactlyOnce`` each task is a transaction: see
:class:`TransactionalWriter`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from nilometer.client.admin.group_admin import GroupAdmin
from nilometer.client.group.group_exchange import GroupMetadata, OffsetAndMetadata
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.client.producer.batch import Delivery
from nilometer.client.producer.producer_settings import PRODUCER_CONFIG_DEFINITION, ProducerConfig
from nilometer.client.producer.transactional_producer import TransactionalProducer
from nilometer.client.settings import ClientSettings
from nilometer.config import ConfigError
from nilometer.pipeline.errors import OptionError, SinkError
from nilometer.pipeline.repeats import (
    BATCH_HEADER,
    PARTITION_HEADER,
    REPEAT_HEADERS,
    ROW_HEADER,
    WRITER_HEADER,
)
from nilometer.pipeline.sink.cluster_writer import ClusterWriter, Outgoing, acknowledged, send_all
from nilometer.runtime import Runtime
from nilometer.wire.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


# The options of ``df.write.format("nilometer")`` and the columns it takes: those of Spark's Kafka sink.
#
# Pure. An invalid option raises :class:`OptionError`, with the option, its value and the allowed values.

ALLOWED = {
    "topic": "the topic to write to; without it, the column topic names it for each row",
    "repeatHeaders": "true or false: headers that identify records sent again; true unless exactlyOnce is",
    "exactlyOnce": "true or false (default): each task writes exactly once, even if Spark runs it again",
    "writerId": "the writer's name in these headers, after the query's id; see repeats for foreachBatch",
}
BY_SPARK = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
"""Options that Spark passes to every sink although they are its own; they are ignored."""
KAFKA_PREFIX = "kafka."
NOT_FOR_SPARK = {
    "key.serializer": "give the column key as binary or string",
    "value.serializer": "give the column value as binary or string",
    "transactional.id": "the sink names its transactions itself",
}
DEFAULTS = {"batch.size": str(256 * 1024), "linger.ms": "20"}
"""The producer's defaults here: a task waits only once, at its end, so large batches cost no latency."""

TRANSACTION_TIMEOUT_MS = 15 * 60_000
"""The default of the brokers' ``transaction.max.timeout.ms``. It is long because a task's transaction stays
open while Spark computes the task's rows."""

COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}

_CANONICAL = {name.lower(): name for name in ALLOWED}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    producer: tuple[tuple[str, str], ...]
    """The producer settings, sorted; a process shares one producer per value of this."""
    topic: str | None
    repeat_headers: bool
    writer_id: str | None
    exactly_once: bool = False

    @property
    def bootstrap_servers(self) -> str:
        return dict(self.producer)["bootstrap.servers"]


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse the options that Spark passes; keys are case-insensitive. Raises OptionError."""
    own: dict[str, str] = {}
    producer = dict(DEFAULTS)
    for key, value in given.items():
        name = key.lower()
        if name.startswith(KAFKA_PREFIX):
            producer[name.removeprefix(KAFKA_PREFIX)] = value
        elif name in _CANONICAL:
            own[_CANONICAL[name]] = value
        elif name not in BY_SPARK:
            allowed = ", ".join([*ALLOWED, "kafka.bootstrap.servers, kafka.*"])
            raise OptionError(key, value, f"there is no such option of the sink; allowed are {allowed}")
    exactly_once = _boolean(own, "exactlyOnce", default=False)
    if exactly_once:
        producer.setdefault("transaction.timeout.ms", str(TRANSACTION_TIMEOUT_MS))
    _check_producer(producer, exactly_once)
    if own.get("topic") == "":
        raise OptionError(
            "topic", "", "names no topic: give one, or omit the option and write a column topic"
        )
    return SinkOptions(
        producer=tuple(sorted(producer.items())),
        topic=own.get("topic"),
        repeat_headers=_boolean(own, "repeatHeaders", default=not exactly_once),
        writer_id=own.get("writerId"),
        exactly_once=exactly_once,
    )


def check_columns(types: Mapping[str, str], options: SinkOptions) -> None:
    """Check the columns of a DataFrame, given Spark's names of their types; other columns are ignored.

    Raises OptionError for a missing column or a wrong type.
    """
    if "value" not in types:
        raise OptionError("value", None, f"there is no such column; the columns are {', '.join(types)}")
    if options.topic is None and "topic" not in types:
        raise OptionError("topic", None, "must be given, as an option or as a column")
    for name, allowed in COLUMNS.items():
        kind = types.get(name)
        if kind is not None and kind not in allowed:
            raise OptionError(f"column {name}", kind, f"must be {' or '.join(allowed)}")


def _boolean(own: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = own.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(name, own[name], "must be true or false")
    return text == "true"


def _check_producer(producer: Mapping[str, str], exactly_once: bool) -> None:
    if "bootstrap.servers" not in producer:
        raise OptionError("kafka.bootstrap.servers", None, "must be given: host:port[,host:port...]")
    for name, reason in NOT_FOR_SPARK.items():
        if name in producer:
            raise OptionError(KAFKA_PREFIX + name, producer[name], reason)
    settings = {**producer, "transactional.id": "any"} if exactly_once else producer
    try:
        ProducerConfig.of(ClientSettings(PRODUCER_CONFIG_DEFINITION, settings))
    except ConfigError as error:
        raise OptionError(KAFKA_PREFIX + error.key, producer.get(error.key), str(error)) from error


# Writes the records of one Spark task in one transaction, exactly once even if Spark runs the task again.
#
# Does not depend on Spark. The transaction also commits the batch number, as an offset of a consumer group
# that is named like the transactional id (the *note*). So records and note become visible together or not at
# all:
#
# - an attempt that fails, or whose executor dies, writes nothing that ``read_committed`` consumers return;
# - an attempt that starts after another one has committed finds the note and writes nothing;
# - an attempt fences all attempts that started before it, so that only one of several concurrent ones
#   commits.
#
# Invariant: the note is read after InitProducerId, when no earlier attempt can commit any more.

logger = logging.getLogger("nilometer.pipeline.sink.transactional_writer")

_ROWS = "rows="


class TaskTransaction(NamedTuple):
    """Identifies a task of a micro-batch; equal for all attempts of the task."""

    transactional_id: str
    batch: int
    """The number of the micro-batch; 0 outside a stream. Lower numbers than the committed one are skipped."""


class Committed(NamedTuple):
    batch: int
    rows: int


class TransactionalWriter:
    """Writes one attempt of a task. ``runner`` has the event loop, ``settings`` are the producer's."""

    def __init__(self, runner: ClusterWriter, settings: Mapping[str, str], task: TaskTransaction) -> None:
        self._runner = runner
        self._settings = settings
        self._task = task

    def write(self, chunks: Iterable[Sequence[Outgoing]]) -> int:
        """Write and commit the rows unless an earlier attempt has committed them; return their number.

        Raises SinkError if that failed. If the commit took effect nevertheless, the next attempt finds it.
        """
        try:
            producer = self._runner.run(self._open())
            try:
                before = self._runner.run(self._committed(producer))
                if before is not None and before.batch >= self._task.batch:
                    return self._skip(chunks, before)
                return self._write(producer, chunks)
            finally:
                with suppress(KafkaError):  # an open transaction that this cannot abort times out
                    self._runner.run(producer.close())
        except KafkaError as error:
            servers = self._settings["bootstrap.servers"]
            raise SinkError(
                f"the transaction of {self._task.transactional_id} at {servers} failed: {error}"
            ) from error

    def _write(self, producer: TransactionalProducer, chunks: Iterable[Sequence[Outgoing]]) -> int:
        count = 0
        place: TopicPartition | None = None
        under_way: Sequence[Delivery] = ()
        for chunk in chunks:
            if not chunk:
                continue
            if place is None:
                place = TopicPartition(chunk[0].topic, 0)
                self._runner.run(producer.begin())
            sent = self._runner.run(send_all(producer, chunk))
            self._runner.run(acknowledged(under_way))
            under_way = sent
            count += len(chunk)
        if place is not None:
            self._runner.run(self._commit(producer, place, count))
        return count

    def _skip(self, chunks: Iterable[Sequence[Outgoing]], before: Committed) -> int:
        """Return the number of rows without writing them, since the batch is committed.

        Raises SinkError if the committed number of rows is another one: then Spark has distributed the rows
        of the batch over its tasks in another way.
        """
        count = sum(len(chunk) for chunk in chunks)
        if before.batch == self._task.batch and before.rows != count:
            raise SinkError(
                f"{self._task.transactional_id} committed {before.rows} rows of batch {self._task.batch} "
                f"and has {count} rows now: exactlyOnce needs a batch that is run again to have the same "
                "rows in the same tasks"
            )
        logger.info(
            "%s has committed batch %d already; its rows are not written again",
            self._task.transactional_id,
            self._task.batch,
        )
        return count

    # --- in the event loop's thread

    async def _open(self) -> TransactionalProducer:
        settings = {**self._settings, "transactional.id": self._task.transactional_id}
        return await TransactionalProducer(Runtime.system(), settings).__aenter__()

    async def _committed(self, producer: TransactionalProducer) -> Committed | None:
        timeout_ms = producer.config.max_block_ms
        notes = await GroupAdmin(producer.client, timeout_ms).committed(self._task.transactional_id)
        return max((self._read(note) for note in notes.values()), default=None)

    def _read(self, note: OffsetAndMetadata) -> Committed:
        rows = note.metadata.removeprefix(_ROWS)
        if not note.metadata.startswith(_ROWS) or not rows.isdecimal():
            raise SinkError(
                f"consumer group {self._task.transactional_id} has offsets that the sink did not commit: "
                "delete the group, since exactlyOnce keeps its progress in it"
            )
        return Committed(note.offset - 1, int(rows))

    async def _commit(self, producer: TransactionalProducer, place: TopicPartition, rows: int) -> None:
        note = OffsetAndMetadata(self._task.batch + 1, metadata=f"{_ROWS}{rows}")
        await producer.send_offsets({place: note}, GroupMetadata(self._task.transactional_id))
        await producer.commit()


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
