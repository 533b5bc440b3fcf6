"""The data source ``format("nilometer-log")``: plans on the driver, Arrow batches on executors, no broker.

Implements Spark's interface for Python data sources. The columns are those of ``nilometer`` and three from
the batch headers. A schema given by the user selects columns, in any order, and only these are made: Spark
does not pass to a Python source which columns a query uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from nilometer.pipeline.decode.column_decoder import LOG_COLUMNS, kafka_columns
from nilometer.pipeline.errors import OptionError, SourceError
from nilometer.pipeline.source.log_folders.log_plan import LogOptions, parse_log_options, plan
from nilometer.pipeline.source.log_folders.log_slices import LogSlice, SliceReader
from nilometer.pipeline.source.positions import Bounds, bounds_of, pushes_filters
from nilometer.pipeline.source.source_options import includes_headers
from nilometer.wire.errors import CorruptBatch

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "leader_epoch": "int",
    "producer_id": "bigint",
    "batch_attributes": "int",
}


def schema_of(options: Mapping[str, str]) -> str:
    columns = (*kafka_columns(includes_headers(options)), *LOG_COLUMNS)
    return ", ".join(f"{name} {_TYPES[name]}" for name in columns)


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader: one that takes filters only if the option asks for it and Spark pushes filters down.

    Spark rejects a reader that takes filters in other sessions. See ``FilteringBatchReader`` of
    ``cluster_source`` for the reason of the option.
    """
    is_enabled = parse_log_options(options).common.push_down_filters
    return (FilteringLogReader if is_enabled and pushes_filters() else LogReader)(options, schema)


class SlicePartition(InputPartition):
    def __init__(self, wanted: LogSlice) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class LogReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = parse_log_options(options)
        self._columns = _wanted_columns(schema)
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        return [SlicePartition(one) for one in plan(self._options, self._bounds)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if isinstance(partition, SlicePartition):  # without partitions Spark runs one task with None
            yield from read_slice(self._options, self._columns, partition.wanted)


class FilteringLogReader(LogReader):
    """A reader that also uses the query's filters to limit what it reads."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._bounds = bounds_of(filters)
        yield from filters  # Spark applies all of them to the rows again


def read_slice(
    options: LogOptions, columns: Sequence[str], wanted: LogSlice
) -> Iterator[pyarrow.RecordBatch]:
    """Read one slice on an executor; yield Arrow batches of ``columns``. Raises SourceError, DataLoss."""
    from nilometer.pipeline.decode.column_decoder import ColumnDecoder
    from nilometer.pipeline.source.log_folders.log_slices import CommittedRows

    decoder = ColumnDecoder(wanted.topic, wanted.partition, wanted.start, wanted.end, columns=columns)
    committed = CommittedRows(wanted.aborted) if wanted.aborted else None
    reader = SliceReader(
        wanted.place,
        segments_in_tier=wanted.segments_in_tier,
        tier=wanted.tier,
        fail_on_data_loss=options.common.fail_on_data_loss,
    )
    for table in reader.tables(wanted.start, wanted.end):
        try:
            yield from decoder.add_table(table, committed)
        except CorruptBatch as error:
            raise SourceError(f"{reader.path} is damaged: {error.message}") from error
    yield from decoder.take()


def _wanted_columns(schema: StructType) -> tuple[str, ...]:
    known: dict[str, Any] = {**_TYPES}
    for field in schema.fields:
        kind = known.get(field.name)
        if kind is None or field.dataType.simpleString() != kind or not field.nullable:
            columns = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
            raise OptionError("schema", schema.simpleString(), f"must be some of these columns: {columns}")
    return tuple(field.name for field in schema.fields)
