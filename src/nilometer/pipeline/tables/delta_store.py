"""A Delta Lake table: each batch is one version, with the batch id as the application's transaction.

The transaction of an application stays in the table's log when old versions are forgotten. Files that tasks
wrote become part of the table by their names; only a change of columns, and an upsert, read them here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from nilometer.pipeline.tables.staged_files import StagedFile, remove_staged
from nilometer.pipeline.tables.staging import DELETED
from nilometer.pipeline.tables.table_store import (
    BATCH,
    ROWS,
    Batch,
    Commit,
    Totals,
    arrow_schema,
    needed,
    newest_rows,
    row_type,
    without_keys,
)
from nilometer.pipeline.tables.values import DAY, KEY, ValueType

_CREATED_BY: Final = "nilometer "
_READ_ROWS: Final = 65_536


class DeltaStore:
    def __init__(self, table: Path, *, by_day: bool = False, upsert: bool = False) -> None:
        self._path = table
        self._by_day = by_day
        self._upsert = upsert
        self._delta = needed("deltalake")
        self._actions = needed("deltalake.transaction")

    def folder_of(self, batch_id: int) -> str:
        return f"data/{batch_id:010d}"

    def exists(self) -> bool:
        return bool(self._delta.DeltaTable.is_deltatable(str(self._path)))

    def columns(self) -> ValueType:
        return row_type(pa.schema(self._table().schema().to_arrow()))

    def application(self) -> str | None:
        described: str = self._table().metadata().description or ""
        return described.removeprefix(_CREATED_BY) if described.startswith(_CREATED_BY) else None

    def create(self, application: str, columns: ValueType) -> None:
        self._delta.DeltaTable.create(
            str(self._path),
            arrow_schema(columns, with_day=self._by_day),
            partition_by=self._partition_by,
            description=f"{_CREATED_BY}{application}",
        )

    def last_batch(self, application: str) -> int | None:
        return self._table().transaction_version(application)

    def commit(self, batch: Batch) -> None:
        if not batch.change and (not self._upsert or not batch.files):
            self._append(batch)
            return
        if self._upsert and batch.files:
            newest = newest_rows(self._path, batch.files)
            (self._rewrite if batch.change else self._merge)(batch, newest)
        elif batch.change.widened:
            self._rewrite(batch, None)
        else:
            self._write(batch, self._staged(batch), mode="append", schema_mode="merge")
        remove_staged(self._path / self.folder_of(batch.batch_id))  # their rows are in other files now

    def compact(self) -> None:
        self._table().optimize.compact()

    def commits(self) -> list[Commit]:
        return [
            Commit(int(one[BATCH]), int(one[ROWS]), datetime.fromtimestamp(one["timestamp"] / 1000, tz=UTC))
            for one in reversed(self._table().history())
            if BATCH in one
        ]

    def totals(self) -> Totals:
        table = self._table()
        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return Totals(
            sum(one["num_records"] or 0 for one in files),
            len(files),
            sum(one["size_bytes"] for one in files),
            str(table.version()),
        )

    @property
    def _partition_by(self) -> list[str]:
        return [DAY] if self._by_day else []

    def _table(self) -> Any:
        return self._delta.DeltaTable(str(self._path))

    def _properties(self, batch: Batch) -> Any:
        return self._delta.CommitProperties(
            custom_metadata={BATCH: str(batch.batch_id), ROWS: str(batch.rows)},
            app_transactions=[self._delta.Transaction(batch.application, batch.batch_id)],
        )

    def _append(self, batch: Batch) -> None:
        table = self._table()
        now_ms = time.time_ns() // 1_000_000
        table.create_write_transaction(
            [self._action(file, now_ms) for file in batch.files],
            "append",
            table.schema(),
            self._partition_by,
            commit_properties=self._properties(batch),
        )

    def _action(self, file: StagedFile, now_ms: int) -> Any:
        partition = {DAY: file.day} if self._by_day else {}
        stats = json.dumps({"numRecords": file.rows})
        return self._actions.AddAction(file.path, file.size, partition, now_ms, True, stats)

    def _write(self, batch: Batch, rows: Any, *, mode: str, schema_mode: str) -> None:
        self._delta.write_deltalake(
            self._table(),
            rows,
            mode=mode,
            schema_mode=schema_mode,
            partition_by=self._partition_by or None,
            commit_properties=self._properties(batch),
        )

    def _merge(self, batch: Batch, rows: Any) -> None:
        names = arrow_schema(batch.change.columns, with_day=self._by_day).names
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        columns = {name: f"s.{name}" for name in quoted}
        (
            self._table()
            .merge(
                rows,
                predicate=f't."{KEY}" = s."{KEY}"',
                source_alias="s",
                target_alias="t",
                commit_properties=self._properties(batch),
            )
            .when_matched_delete(f's."{DELETED}"')
            .when_matched_update(columns)
            .when_not_matched_insert(columns, predicate=f'not s."{DELETED}"')
            .execute()
        )

    def _rewrite(self, batch: Batch, newest: Any | None) -> None:
        """Write the whole table with other types of columns, in one version."""
        schema = arrow_schema(batch.change.columns, with_day=self._by_day)
        files = pa.table(self._table().get_add_actions(flatten=True)).to_pylist()

        def batches() -> Iterator[Any]:
            for file in files:
                for rows in self._rows(unquote(file["path"]), file.get(f"partition.{DAY}"), schema):
                    old = pa.table(rows)
                    yield from (old if newest is None else without_keys(old, newest)).to_batches()
            if newest is None:
                yield from self._staged_rows(batch, schema)
            else:
                compute = needed("pyarrow.compute")
                kept = newest.filter(compute.invert(newest.column(DELETED)))
                yield from (conformed(one, schema) for one in kept.to_batches())

        rows = pa.RecordBatchReader.from_batches(schema, batches())
        self._write(batch, rows, mode="overwrite", schema_mode="overwrite")

    def _staged(self, batch: Batch) -> Any:
        """Return a reader of the batch's rows, with the day of each if the table is partitioned."""
        schema = arrow_schema(batch.change.columns, with_day=self._by_day)
        return pa.RecordBatchReader.from_batches(schema, self._staged_rows(batch, schema))

    def _staged_rows(self, batch: Batch, schema: pa.Schema) -> Iterator[Any]:
        for file in batch.files:
            day = date.fromisoformat(file.day) if file.day is not None else None
            yield from self._rows(file.path, day, schema)

    def _rows(self, path: str, day: date | None, schema: pa.Schema) -> Iterator[Any]:
        """Yield the rows of a data file, which has no column for the day.

        The files are read by Arrow: deltalake cannot read a table for a stream that it writes.
        """
        parquet: Any = needed("pyarrow.parquet")
        with parquet.ParquetFile(self._path / path) as opened:
            for rows in opened.iter_batches(_READ_ROWS):
                yield conformed(rows, schema, {DAY: day})


def conformed(rows: Any, schema: pa.Schema, constants: Mapping[str, object] | None = None) -> Any:
    """Return the rows with the columns of ``schema``: cast, or constant, or null where they have none."""
    columns: list[Any] = []
    for field in schema:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name).cast(field.type))
        else:
            value = (constants or {}).get(field.name)
            columns.append(pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
