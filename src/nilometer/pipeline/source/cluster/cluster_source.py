"""The readers of ``format("nilometer")``: positions and plans on the driver, Arrow batches on executors.

Implements Spark's interface for Python data sources. ``cluster_reader`` accesses the cluster, and
``positions`` computes the ranges between two positions. Readers are pickled to executors, so they contain
options only; each process has its own connections.

Invariants, as in Spark's Kafka source: a batch reads exactly the records between its two positions; a
position of a topic is never used for a later topic with the same name; new partitions are read from their
start; with Trigger.AvailableNow no record is read that was written after the start of the query.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nilometer.client.network.cluster_metadata import TopicMetadata, TopicPartition
from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.positions import (
    Bounds,
    OffsetRange,
    Position,
    bounds_of,
    limited,
    narrowed,
    pushes_filters,
    ranges,
    split,
)
from nilometer.pipeline.source.source_options import (
    EARLIEST,
    LATEST,
    AtTime,
    Bound,
    PartitionOffsets,
    SourceOptions,
    includes_headers,
    parse_options,
)
from nilometer.wire.record_batch import BatchHeader
from nilometer.wire.records import ControlType, control_type, decode_records

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


# Resolves the options to positions, on the driver: the selected partitions, their start and end offsets.
#
# Reads metadata and offsets through ``cluster_reader``. Does not depend on Spark.
#
# Invariant: a position contains every partition that is read, with an offset that is at most its end offset.

NOT_FOUND = -1
"""The offset returned for a timestamp if no record is that late."""


def find_latest(options: SourceOptions, known: Position | None = None) -> Position:
    """Return the end offsets of all selected partitions.

    ``known`` is the position read so far: a topic in it may be missing. Raises SourceError.
    """
    reader = ClusterReader.shared(options.consumer)
    while True:
        topics = _described(options, known)
        parts = _parts(options, topics)
        ends = reader.offsets(dict.fromkeys(parts, LATEST))
        if reader.are_known(topics):
            return Position(ends, _topic_ids(topics))
        # A topic was deleted and created again meanwhile, so these may be the ends of either: repeat.


def find_start(options: SourceOptions) -> tuple[Position, Position]:
    """Return the position where a new stream begins, and the end offsets at that moment."""
    latest = find_latest(options)
    start = Position(_resolved(options, "startingOffsets", options.starting, latest), latest.topic_ids)
    return start, latest


def find_bounds(options: SourceOptions) -> tuple[Position, Position]:
    """Return the positions where a batch begins and ends."""
    latest = find_latest(options)
    start = _resolved(options, "startingOffsets", options.starting, latest)
    end = _resolved(options, "endingOffsets", options.ending, latest)
    return Position(start, latest.topic_ids), Position(end, latest.topic_ids)


def find_times(options: SourceOptions, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return, per partition, the first offset at or after a timestamp (ms); NOT_FOUND if there is none."""
    return ClusterReader.shared(options.consumer).offsets(times)


def _described(options: SourceOptions, known: Position | None) -> dict[str, TopicMetadata]:
    """Return the selected topics. Raises SourceError for a missing one, unless it is in ``known``."""
    topics = ClusterReader.shared(options.consumer).topics(options.selection)
    names = options.selection.names or ()
    read_before = {part.topic for part in known.offsets} if known is not None else set[str]()
    for name in names:
        if name not in topics and name not in read_before:
            raise SourceError(f"topic {name} does not exist at {options.bootstrap_servers}")
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
            raise SourceError(
                f"partition {name}-{numbers[-1]} does not exist: the topic has {count} partitions"
            )
        parts += [TopicPartition(name, number) for number in numbers if number < count]
    return parts


def _topic_ids(topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
    """Return the topic ids by name; brokers without topic ids return none, or only zeros."""
    return {
        name: str(topic.topic_id) for name, topic in topics.items() if topic.topic_id and topic.topic_id.int
    }


def _resolved(options: SourceOptions, name: str, bound: Bound, latest: Position) -> dict[TopicPartition, int]:
    """Return the offset of each partition for option ``name``, whose value is ``bound``.

    Raises OptionError for an offset above the end offset.
    """
    parts = sorted(latest.offsets)
    if isinstance(bound, AtTime):
        return _at_time(options, bound, parts, latest)
    wanted = _for_each(name, bound, parts)
    earliest = ClusterReader.shared(options.consumer).offsets(
        {part: EARLIEST for part, offset in wanted.items() if offset == EARLIEST}
    )
    found = {
        part: {EARLIEST: earliest.get(part, 0), LATEST: latest.offsets[part]}.get(at, at)
        for part, at in wanted.items()
    }
    for part, offset in sorted(found.items()):
        end = latest.offsets[part]
        if offset > end:
            raise OptionError(name, None, f"offset {offset} of {part} is beyond its end offset, {end}")
    return found


def _at_time(
    options: SourceOptions, bound: AtTime, parts: Sequence[TopicPartition], latest: Position
) -> dict[TopicPartition, int]:
    times = _for_each(bound.option, bound.milliseconds, parts)
    found = find_times(options, times)
    for part in parts:
        if found[part] == NOT_FOUND and not bound.or_latest:
            raise OptionError(
                bound.option,
                str(times[part]),
                f"{part} has no record with this timestamp or a later one. "
                "startingOffsetsByTimestampStrategy=latest starts at its end offset",
            )
    return {part: latest.offsets[part] if at == NOT_FOUND else at for part, at in found.items()}


def _for_each(
    name: str, bound: int | PartitionOffsets, parts: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    if isinstance(bound, int):
        return dict.fromkeys(parts, bound)
    wanted = {
        TopicPartition(topic, number): at
        for topic, numbers in bound.items()
        for number, at in numbers.items()
    }
    missing, unknown = sorted(set(parts) - set(wanted)), sorted(set(wanted) - set(parts))
    if missing or unknown:
        reason = f"{missing[0]} has none" if missing else f"{unknown[0]} is not read"
        what = "a time" if "Timestamp" in name else "an offset"
        raise OptionError(name, None, f"must have {what} for each partition that is read: {reason}")
    return wanted


# Decides which batches of one Fetch response are committed (read_committed). Pure.
#
# The response lists the aborted transactions among its records: producer id and first offset. Each ends at
# the producer's abort marker, a control record among the records.
#
# Invariant: the batches are passed in the order of their offsets, each once.


class CommittedBatches:
    """A function to call with each batch, control batches too: returns whether to return its records."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """``aborted`` are (producer id, first offset) of the aborted transactions."""
        self._to_come = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._aborting: set[int] = set()

    def __call__(self, buffer: bytes | memoryview, position: int, header: BatchHeader) -> bool:
        while self._to_come and self._to_come[-1][1] <= header.last_offset:
            self._aborting.add(self._to_come.pop()[0])
        if header.producer_id not in self._aborting:
            return True
        if header.is_control:
            records = decode_records(buffer, position, header)
            if any(control_type(record) is ControlType.ABORT for record in records):
                self._aborting.discard(header.producer_id)
        return not header.is_transactional


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
    """Return the schema, as SQL: the columns of Spark's Kafka source."""
    return ", ".join(f"{name} {kind}" for name, kind in _columns(options))


def _columns(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return (*COLUMNS, HEADERS_COLUMN) if includes_headers(options) else COLUMNS


class RangePartition(InputPartition):
    """The offset range that one task reads."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class BatchReader(DataSourceReader):
    """Reads the records between two positions, which are fixed when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(options, streaming=False)
        _require_own_schema(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        return _planned(self._options, ranges(*find_bounds(self._options)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_range(self._options, partition)


class FilteringBatchReader(BatchReader):
    """Does not read records that the query's filters on offset, partition, topic and timestamp exclude.

    Only for sessions that push filters down: in others Spark rejects a reader that takes filters. And only if
    the option asks for it: Spark keeps the plan of a DataFrame's last read, and a later query on the same
    DataFrame whose filters cannot be pushed down would use that plan, and so get too few rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        return filters  # Spark applies them all to the rows again

    def partitions(self) -> Sequence[InputPartition]:
        start, end = find_bounds(self._options)
        wanted = narrowed(ranges(start, end), self._bounds)
        if self._bounds.since_ms is not None:
            since = find_times(self._options, {one.part: self._bounds.since_ms for one in wanted})
            begin = {part: end.offsets[part] if at == NOT_FOUND else at for part, at in since.items()}
            wanted = narrowed(wanted, self._bounds, begin)
        return _planned(self._options, wanted)


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    is_enabled = parse_options(options, streaming=False).push_down_filters
    return (FilteringBatchReader if is_enabled and pushes_filters() else BatchReader)(options, schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_options(options, streaming=True)
        _require_own_schema(options, schema)
        self._latest: Position | None = None
        self._target: Position | None = None
        self._last_trigger_ms = time.monotonic_ns() // 1_000_000

    # --- positions, on the driver

    def initialOffset(self) -> dict[str, Any]:
        start, latest = find_start(self._options)
        if self._target is not None:
            # Spark requested the target first; the topic may have grown since.
            self._target = latest
        return start.as_start().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = find_latest(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Position.from_json(start)
        self._latest = self._target or find_latest(self._options, begin)
        end = self._without_losses(begin, self._latest)
        if self._waits_for_more(begin, end):
            return start
        match limit:
            case ReadAllAvailable():
                pass
            case ReadMaxRows(max_rows=rows):
                end = limited(begin, end, rows)
            case _:
                raise SourceError(f"the read limit {type(limit).__name__} is not supported")
        return end.reached_from(begin).to_json()

    def _waits_for_more(self, begin: Position, end: Position) -> bool:
        """Whether there are fewer records than minOffsetsPerTrigger and maxTriggerDelay has not passed."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now_ms = time.monotonic_ns() // 1_000_000
        is_due = now_ms - self._last_trigger_ms >= self._options.max_trigger_delay_ms
        if sum(map(len, ranges(begin, end))) < least and not is_due:
            return True
        self._last_trigger_ms = now_ms
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def _without_losses(self, begin: Position, end: Position) -> Position:
        """Return ``end``; with failOnDataLoss raise DataLoss if ``begin`` is not in the topics any more."""
        if not self._options.fail_on_data_loss:
            return end
        for part, offset in sorted(begin.offsets.items()):
            if part not in end.offsets:
                raise DataLoss(f"partition {part} does not exist any more")
            if not begin.is_same_topic(part.topic, end):
                raise DataLoss(f"topic {part.topic} was deleted and created again")
            if end.offsets[part] < offset:
                raise DataLoss(
                    f"{part} was read up to offset {offset}, but its end offset is now {end.offsets[part]}"
                )
        return end

    # --- plans and reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        wanted = ranges(Position.from_json(start), Position.from_json(end))
        return _planned(self._options, wanted)

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_range(self._options, partition)

    def stop(self) -> None:
        ClusterReader.shared(self._options.consumer).close()


def _planned(options: SourceOptions, wanted: Sequence[OffsetRange]) -> list[RangePartition]:
    pieces = split(wanted, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(one) for one in pieces]


def read_range(options: SourceOptions, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
    """Read one range on an executor; yield Arrow batches. Raises SourceError, DataLoss.

    If there are no partitions, Spark runs one task with None.
    """
    if not isinstance(partition, RangePartition):
        return
    from nilometer.pipeline.decode.column_decoder import ColumnDecoder

    wanted = partition.wanted
    decoder = ColumnDecoder(
        wanted.topic,
        wanted.partition,
        wanted.start,
        wanted.end,
        with_headers=options.include_headers,
    )
    reader = ClusterReader.shared(options.consumer)
    for fetched in reader.fetch(wanted, fail_on_data_loss=options.fail_on_data_loss):
        decoder.skip_to(fetched.offset)
        committed = CommittedBatches(fetched.aborted) if fetched.aborted else None
        yield from decoder.add(fetched.records, committed)
    yield from decoder.take()


def _require_own_schema(options: Mapping[str, str], schema: StructType) -> None:
    fields = ",".join(f"{name}:{kind}" for name, kind in _columns(options))
    if schema.simpleString() != f"struct<{fields}>":
        raise OptionError("schema", schema.simpleString(), f"the columns are fixed: {schema_of(options)}")
