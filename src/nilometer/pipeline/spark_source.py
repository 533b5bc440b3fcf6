"""The readers behind ``format("nilometer")``: positions and plans on the driver, Arrow batches on executors.

Knows Spark's contract for Python data sources; asks ``cluster_reader`` for everything about the cluster and
``offsets`` for what lies between two positions. Readers are pickled to executors, so they hold options only;
a connection is the process's own.

Invariants, as Spark's Kafka source has them: a batch reads exactly what lies between its two positions; a
position never comes back from a topic's second life as if it were the first; new partitions are read from
their start; with Trigger.AvailableNow nothing is read that came after the start of the query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nilometer.client.cluster_metadata import TopicPartition
from nilometer.pipeline.cluster_reader import ClusterReader
from nilometer.pipeline.errors import DataLoss, OptionError, SourceProblem
from nilometer.pipeline.offsets import OffsetRange, Position, limited, ranges, split
from nilometer.pipeline.source_options import (
    EARLIEST,
    LATEST,
    PartitionOffsets,
    SourceOptions,
    includes_headers,
    parse_options,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from nilometer.client.cluster_metadata import TopicMetadata

COLUMNS = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
HEADERS_COLUMN = ("headers", "array<struct<key:string,value:binary>>")


def schema_of(options: Mapping[str, str]) -> str:
    """The columns of Spark's Kafka source, in SQL."""
    return ", ".join(f"{name} {kind}" for name, kind in _columns(options))


def _columns(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return (*COLUMNS, HEADERS_COLUMN) if includes_headers(options) else COLUMNS


class RangePartition(InputPartition):
    """One task's work."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class BatchReader(DataSourceReader):
    """Everything between two positions that are fixed when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(options, streaming=False)
        _require_own_schema(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        topics = _described(options)
        parts = _parts(options, topics)
        reader = ClusterReader.shared(options.consumer)
        latest = reader.offsets(dict.fromkeys(parts, LATEST))
        start = _resolved(options, "startingOffsets", options.starting, parts, latest)
        end = _resolved(options, "endingOffsets", options.ending, parts, latest)
        ids = _topic_ids(topics)
        wanted = ranges(Position(start, ids), Position(end, ids))
        return [RangePartition(one) for one in split(wanted, options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_range(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(options, streaming=True)
        _require_own_schema(options, schema)
        self._latest: Position | None = None
        self._target: Position | None = None

    # --- positions, on the driver

    def initialOffset(self) -> dict[str, Any]:
        topics = _described(self._options)
        parts = _parts(self._options, topics)
        latest = ClusterReader.shared(self._options.consumer).offsets(dict.fromkeys(parts, LATEST))
        start = _resolved(self._options, "startingOffsets", self._options.starting, parts, latest)
        return Position(start, _topic_ids(topics)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._find_latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Position.from_json(start)
        self._latest = self._target or self._find_latest(begin)
        end = self._without_losses(begin, self._latest)
        match limit:
            case ReadAllAvailable():
                return end.to_json()
            case ReadMaxRows(max_rows=rows):
                return limited(begin, end, rows).to_json()
            case _:
                raise SourceProblem(f"the read limit {type(limit).__name__} is not supported")

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def _find_latest(self, known: Position | None = None) -> Position:
        topics = _described(self._options, known)
        parts = _parts(self._options, topics)
        offsets = ClusterReader.shared(self._options.consumer).offsets(dict.fromkeys(parts, LATEST))
        return Position(offsets, _topic_ids(topics))

    def _without_losses(self, begin: Position, end: Position) -> Position:
        """``end``, or a DataLoss for what of ``begin`` is not there any more."""
        if not self._options.fail_on_data_loss:
            return end
        for part, offset in sorted(begin.offsets.items()):
            if part not in end.offsets:
                raise DataLoss(f"partition {part} does not exist any more")
            if not begin.is_same_topic(part.topic, end):
                raise DataLoss(f"topic {part.topic} was deleted and created again")
            if end.offsets[part] < offset:
                raise DataLoss(f"{part} was read up to {offset}, and now ends at {end.offsets[part]}")
        return end

    # --- plans and reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        wanted = ranges(Position.from_json(start), Position.from_json(end))
        return [RangePartition(one) for one in split(wanted, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_range(self._options, partition)

    def stop(self) -> None:
        ClusterReader.shared(self._options.consumer).close()


def read_range(options: SourceOptions, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
    """One task, on an executor. Without partitions Spark runs one task with None."""
    if not isinstance(partition, RangePartition):
        return
    from nilometer.pipeline.arrow_decode import ColumnDecoder

    wanted = partition.wanted
    decoder = ColumnDecoder(
        wanted.topic, wanted.partition, wanted.start, wanted.end, with_headers=options.include_headers
    )
    reader = ClusterReader.shared(options.consumer)
    for fetched in reader.fetch(wanted, fail_on_data_loss=options.fail_on_data_loss):
        decoder.skip_to(fetched.offset)
        yield from decoder.add(fetched.records)
    yield from decoder.take()


def _described(options: SourceOptions, known: Position | None = None) -> dict[str, TopicMetadata]:
    """The selected topics. One that is missing is an error, unless it was read before: then it is a loss."""
    topics = ClusterReader.shared(options.consumer).topics(options.selection)
    names = options.selection.names or ()
    read_before = {part.topic for part in known.offsets} if known is not None else set[str]()
    for name in names:
        if name not in topics and name not in read_before:
            raise SourceProblem(f"topic {name} does not exist at {options.bootstrap_servers}")
    return topics


def _parts(options: SourceOptions, topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    assigned = options.selection.assigned
    if assigned is None:
        return [
            TopicPartition(name, one.partition) for name in sorted(topics) for one in topics[name].partitions
        ]
    parts: list[TopicPartition] = []
    for name, numbers in assigned.items():
        count = len(topics[name].partitions) if name in topics else 0
        if count and numbers[-1] >= count:
            raise SourceProblem(f"topic {name} has {count} partitions, and no partition {numbers[-1]}")
        parts += [TopicPartition(name, number) for number in numbers if number < count]
    return parts


def _topic_ids(topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
    """Brokers that know no ids give none, or one of nothing but zeros."""
    return {
        name: str(topic.topic_id) for name, topic in topics.items() if topic.topic_id and topic.topic_id.int
    }


def _resolved(
    options: SourceOptions,
    name: str,
    asked: int | PartitionOffsets,
    parts: Sequence[TopicPartition],
    latest: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """An offset for each partition, where earliest and latest were asked for or offsets were given."""
    if isinstance(asked, int):
        wanted = dict.fromkeys(parts, asked)
    else:
        wanted = {
            TopicPartition(topic, number): at
            for topic, numbers in asked.items()
            for number, at in numbers.items()
        }
        missing, unknown = sorted(set(parts) - set(wanted)), sorted(set(wanted) - set(parts))
        if missing or unknown:
            reason = f"lacks {missing[0]}" if missing else f"names {unknown[0]}, which is not read"
            raise OptionError(name, None, f"must have an offset for each partition that is read; it {reason}")
    earliest = ClusterReader.shared(options.consumer).offsets(
        {part: EARLIEST for part, offset in wanted.items() if offset == EARLIEST}
    )
    found = {
        part: {EARLIEST: earliest.get(part, 0), LATEST: latest[part]}.get(at, at)
        for part, at in wanted.items()
    }
    for part, offset in sorted(found.items()):
        if offset > latest[part]:
            raise OptionError(name, None, f"offset {offset} of {part} lies beyond its end, {latest[part]}")
    return found


def _require_own_schema(options: Mapping[str, str], schema: StructType) -> None:
    fields = ",".join(f"{name}:{kind}" for name, kind in _columns(options))
    if schema.simpleString() != f"struct<{fields}>":
        raise OptionError("schema", schema.simpleString(), f"the columns are fixed: {schema_of(options)}")
