"""The readers of ``format("nilometer")``: positions and plans on the driver, Arrow batches on executors.

Implements Spark's interface for Python data sources. ``cluster_reader`` accesses the cluster, and
``positions`` computes the ranges between two positions. Readers are pickled to executors, so they contain
options only; each process has its own connections.

Invariants, as in Spark's Kafka source: a batch reads exactly the records between its two positions; a
position of a topic is never used for a later topic with the same name; new partitions are read from their
start; with Trigger.AvailableNow no record is read that was written after the start of the query.
"""

from __future__ import annotations

import sys
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

from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.source.cluster.cluster_plan import (
    NOT_FOUND,
    find_bounds,
    find_latest,
    find_start,
    find_times,
)
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.positions import OffsetRange, Position, limited, ranges, split
from nilometer.pipeline.source.pushed_filters import Bounds, bounds_of, narrowed
from nilometer.pipeline.source.source_options import SourceOptions, includes_headers, parse_options

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

COLUMNS = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
_PUSH_DOWN = "pyspark.sql.worker.data_source_pushdown_filters"
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
    return (FilteringBatchReader if is_enabled and _pushes_filters() else BatchReader)(options, schema)


def _pushes_filters() -> bool:
    """Whether this is the process in which Spark pushes filters down.

    Spark plans a read in a separate process, without the session's settings. But it runs one program for
    plans with filters, and another for plans without.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSH_DOWN in sys.modules or (main is not None and main.name == _PUSH_DOWN)


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
    from nilometer.pipeline.source.cluster.committed_batches import CommittedBatches

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
