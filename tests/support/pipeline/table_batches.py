"""Writes batches of records into a table without Spark, as tasks and driver do together."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable

from nilometer.pipeline.tables.avro_values import (
    newest_schema,
    parse_avro_schema,
    read_schemas,
    registry_at,
    schema_ids,
)
from nilometer.pipeline.tables.iceberg_store import TABLE, open_catalog
from nilometer.pipeline.tables.parquet_store import ParquetStore
from nilometer.pipeline.tables.schemas import infer, parse_json_schema
from nilometer.pipeline.tables.staged_files import StagedFile
from nilometer.pipeline.tables.staging import Counts, Rejected, stage
from nilometer.pipeline.tables.table_writer import Sources, TableOptions, TableWriter

Row = dict[str, Any]


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs."""


@dataclass
class Writing:
    """A query that writes batches into one table; a new one is the query after a restart."""

    output: Path
    options: TableOptions = field(default_factory=TableOptions)
    schema: str | None = None
    """The text of a JSON Schema; None to infer the columns."""
    registry: str = ""
    """The URL of the registry of Avro values of the topic `t`; empty: values are JSON."""
    application: str = "query"
    rejected: list[tuple[int, int, str]] = field(default_factory=list)
    """The dead letters that were sent: partition, offset, reason."""
    counts: list[Counts] = field(default_factory=list)
    """What each task has counted."""
    killed_after: str = ""
    """The step after which the process is killed: files, letters or commit."""

    def __post_init__(self) -> None:
        self.writer = TableWriter(self.output, self.application, self.options)

    def write(self, batch_id: int, records: Sequence[Row], tasks: int = 2) -> bool:
        def stage_all(plan: Any) -> list[StagedFile]:
            letters: list[Rejected] = []
            files: list[StagedFile] = []
            for number in range(tasks):
                given = [pa.RecordBatch.from_pylist(list(records[number::tasks]), schema=RECORDS)]
                for one in stage(plan, given):
                    match one:
                        case Rejected():
                            letters.append(one)
                        case Counts():
                            self.counts.append(one)
                        case StagedFile():
                            files.append(one)
            self._end("files")
            self.rejected += [(one.record["partition"], one.record["offset"], str(one)) for one in letters]
            self._end("letters")
            return files

        written = self.writer.write(batch_id, stage_all, self._sources([one["value"] for one in records]))
        self._end("commit")
        return written

    def _sources(self, values: list[bytes | None]) -> Sources:
        if self.registry:
            registry = registry_at(self.registry)
            return Sources(
                row=lambda: parse_avro_schema(newest_schema("t", registry)),
                avro=lambda: read_schemas(schema_ids(values), registry),
            )
        if self.schema is None:
            return Sources(infer=lambda: infer(values))
        text = self.schema
        return Sources(row=lambda: parse_json_schema(text))

    def _end(self, step: str) -> None:
        if self.killed_after == step:
            raise Killed

    def rows(self) -> list[Row]:
        """Return the rows in the order of partition and offset, as polars and as DuckDB read them."""
        return READERS[self.options.format](self.output / "table")


RECORDS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
    ]
)
ROW_SCHEMA = {
    "type": "object",
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "value": {"type": "number"},
        "service": {"type": "string"},
    },
    "required": ["at", "value"],
}
"""Of drawn rows."""
_NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def records_of(
    values: Sequence[bytes | None],
    *,
    first: int = 0,
    keys: Sequence[bytes | None] | None = None,
    day: int = 1,
) -> list[Row]:
    """Return records of partition 0 with the values, from the offset ``first``."""
    return [
        {
            "key": keys[number] if keys else None,
            "value": value,
            "topic": "t",
            "partition": 0,
            "offset": first + number,
            "timestamp": _NOON.replace(day=day, minute=number % 60),
        }
        for number, value in enumerate(values)
    ]


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["_partition"], row["_offset"]))


def _read_equally(frame: polars.DataFrame, arrow: Any, pandas_rows: int) -> list[Row]:
    """Return the rows; assert that polars, DuckDB over Arrow and pandas have the same."""
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("topic", arrow)
    by_duckdb = connection.sql("select * from topic").arrow()
    read = by_duckdb.read_all() if hasattr(by_duckdb, "read_all") else by_duckdb
    rows = _in_order(frame.to_dicts())
    names = frame.columns
    others = [{name: row[name] for name in names} for row in _in_order(read.to_pylist())]
    assert _comparable(others) == _comparable(rows)
    assert pandas_rows == len(rows)
    return rows


def _comparable(value: Any) -> Any:
    match value:
        case dict():
            return {name: _comparable(inner) for name, inner in value.items()}
        case list():
            return [_comparable(inner) for inner in value]
        case datetime():
            return value.astimezone(UTC)
        case _:
            return value


def _read_delta(table: Path) -> list[Row]:
    delta = DeltaTable(str(table))
    return _read_equally(polars.read_delta(str(table)), delta.to_pyarrow_table(), len(delta.to_pandas()))


def _read_iceberg(table: Path) -> list[Row]:
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # without the warning that says so
    iceberg = open_catalog(table).load_table(TABLE)
    arrow = iceberg.scan().to_arrow()
    return _read_equally(polars.scan_iceberg(iceberg).collect(), arrow, len(iceberg.scan().to_pandas()))


def _read_parquet(table: Path) -> list[Row]:
    dataset = ParquetStore(table).dataset()
    visible = sorted(path for path in (table / "data").rglob("*.parquet"))
    assert visible == sorted(ParquetStore(table).files())  # what a reader of all files sees
    arrow = dataset.to_table()
    frame = polars.from_arrow(arrow)
    assert isinstance(frame, polars.DataFrame)
    return _read_equally(frame, arrow, len(arrow.to_pandas()))


READERS: dict[str, Callable[[Path], list[Row]]] = {
    "delta": _read_delta,
    "iceberg": _read_iceberg,
    "parquet": _read_parquet,
}


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [
        b'{"id": %d, "name": "n%d"}' % (one, one) for one in itertools.islice(itertools.count(start), count)
    ]
