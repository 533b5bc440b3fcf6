"""The readers behind ``format("nilometer")``: positions and plans on the driver, Arrow batches on executors.

Knows Spark's contract for Python data sources; asks ``cluster_reader`` for everything about the cluster and
``offsets`` for what lies between two positions. Readers are pickled to executors, so they hold options only;
a connection is the process's own.

Invariants, as Spark's Kafka source has them: a batch reads exactly what lies between its two positions; a
position of a topic is never used for a later topic of its name; new partitions are read from
their start; with Trigger.AvailableNow nothing is read that came after the start of the query.
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

from nilometer.pipeline.cluster_reader import ClusterReader
from nilometer.pipeline.errors import DataLoss, OptionError, SourceError
from nilometer.pipeline.offsets import OffsetRange, Position, limited, ranges, split
from nilometer.pipeline.pushed_filters import Bounds, bounds_of, narrowed
from nilometer.pipeline.source_options import SourceOptions, includes_headers, parse_options
from nilometer.pipeline.source_plan import NOT_FOUND, find_bounds, find_latest, find_start, find_times

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
        return _planned(self._options, ranges(*find_bounds(self._options)))

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return read_range(self._options, partition)


class FilteringBatchReader(BatchReader):
    """Leaves out what the query's filters on offset, partition, topic and time leave out anyway.

    Only for sessions that push filters down: in others Spark refuses a reader that takes them. And only
    where it is asked for: Spark keeps the plan of a DataFrame's last reading, and a later query on the same
    DataFrame whose filters cannot be pushed down would get that plan, and so too few rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters)
        return filters  # Spark applies them all again: bounds are no more than a head start

    def partitions(self) -> Sequence[InputPartition]:
        start, end = find_bounds(self._options)
        wanted = narrowed(ranges(start, end), self._bounds)
        if self._bounds.since_ms is not None:
            since = find_times(self._options, {one.part: self._bounds.since_ms for one in wanted})
            begin = {part: end.offsets[part] if at == NOT_FOUND else at for part, at in since.items()}
            wanted = narrowed(wanted, self._bounds, begin)
        return _planned(self._options, wanted)


def batch_reader(options: Mapping[str, str], schema: StructType) -> BatchReader:
    asked = parse_options(options, streaming=False).push_down_filters
    return (FilteringBatchReader if asked and _pushes_filters() else BatchReader)(options, schema)


def _pushes_filters() -> bool:
    """Whether this is the process in which Spark pushes filters down.

    Spark plans a read in a process of its own and tells it nothing of the session's settings. But it plans
    with one program where it has filters to push, and with another where not.
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
            # Spark asks for the target first; a live topic has grown beyond it by now.
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
        """Whether there is less than minOffsetsPerTrigger, and not for as long as maxTriggerDelay."""
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
        """``end``, or a DataLoss for what of ``begin`` is not there any more."""
        if not self._options.fail_on_data_loss:
            return end
        for part, offset in sorted(begin.offsets.items()):
            if part not in end.offsets:
                raise DataLoss(f"partition {part} does not exist any more")
            if not begin.is_same_topic(part.topic, end):
                raise DataLoss(f"topic {part.topic} was deleted and created again")
            if end.offsets[part] < offset:
                raise DataLoss(
                    f"{part} was read up to offset {offset}, and its end offset is now {end.offsets[part]}"
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
    """One task, on an executor. Without partitions Spark runs one task with None."""
    if not isinstance(partition, RangePartition):
        return
    from nilometer.pipeline.arrow_decode import ColumnDecoder
    from nilometer.pipeline.committed import CommittedBatches

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
