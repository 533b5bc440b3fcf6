"""Orders the steps of a batch, so that a table has each record once, whenever the process is killed.

1. A batch that the table has already is skipped: Spark repeats a batch whose end it has not recorded.
2. The plan, ``plan.json``, fixes the columns with which the batch is written. A repeated batch uses the plan
   of its first attempt, also if the schema was changed in between: it rejects the same records.
3. What a killed attempt has left is removed; then tasks write the files of the batch.
4. Rejected records are sent to the topic of dead letters.
5. Rows, columns and batch id are committed at once.

Without Spark: the caller stages the files and sends the dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.delta_store import DeltaStore
from nilometer.pipeline.tables.evolution import closed, decide_change, extended
from nilometer.pipeline.tables.iceberg_store import IcebergStore
from nilometer.pipeline.tables.json_schema import json_schema_of, parse_json_schema
from nilometer.pipeline.tables.parquet_store import ParquetStore
from nilometer.pipeline.tables.staged_files import StagedFile, remove_staged, write_whole
from nilometer.pipeline.tables.staging import StagingPlan
from nilometer.pipeline.tables.table_store import Batch, TableStore, file_names
from nilometer.pipeline.tables.value_types import SchemaError, ValueType, check_columns, relaxed

TABLE: Final = "table"
"""The table's folder, in the run's."""
PLAN: Final = "plan.json"
INFER: Final = "infer"

TableFormat = Literal["delta", "iceberg", "parquet"]
Infer = Callable[[], ValueType]
"""Infers the type of the rows of the batch."""
Stage = Callable[[StagingPlan], Sequence[StagedFile]]
"""Writes the batch's files, and sends the rejected records as dead letters; returns the files."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a table is, from its first batch on."""

    format: TableFormat = "delta"
    by_day: bool = False
    upsert: bool = False
    registry: str = ""
    """The URL of the registry of Avro values; empty: values are JSON."""

    def check(self) -> None:
        """Raise PipelineError if the format cannot do this."""
        if self.format == "parquet" and (self.by_day or self.upsert):
            raise PipelineError("a Parquet table is neither partitioned nor upserted: use delta or iceberg")
        if self.format == "iceberg" and self.by_day and self.upsert:
            raise PipelineError("an Iceberg table is partitioned by day or upserted, not both: use delta")

    def store(self, output: Path) -> TableStore:
        """Return the table in a run's folder. Raises PipelineError if there is one of another format."""
        self.check()
        table = output / TABLE
        marks = {"delta": "_delta_log", "iceberg": "catalog.db", "parquet": "_commits"}
        for name, mark in marks.items():
            if name != self.format and (table / mark).exists():
                raise PipelineError(f"{table} is a table of format {name}: use --format {name}, or --name")
        match self.format:
            case "delta":
                return DeltaStore(table, by_day=self.by_day, upsert=self.upsert)
            case "iceberg":
                return IcebergStore(table, by_day=self.by_day, upsert=self.upsert)
            case "parquet":
                return ParquetStore(table)


class TableWriter:
    """Writes the batches of one query into one table."""

    def __init__(
        self, output: Path, application: str, options: TableOptions, schema: ValueType | None, *, infer: bool
    ) -> None:
        """``schema`` is that of a file; without one, the columns are the table's, and with ``infer`` those
        that the records add to it."""
        self._output = output
        self._application = application
        self._options = options
        self._schema = schema
        self._infer = infer
        self._store = options.store(output)

    def write(self, batch_id: int, stage: Stage, infer: Infer) -> bool:
        """Write a batch; return False if the table has it already. Raises PipelineError."""
        if self._store.exists():
            self._check_application()
            last = self._store.last_batch(self._application)
            if last is not None and batch_id <= last:
                return False
        row = self._planned(batch_id, infer)
        existing = self._store.columns() if self._store.exists() else relaxed(row)
        change = decide_change(existing, row)
        folder = self._store.folder_of(batch_id)
        table = self._output / TABLE
        remove_staged(table / folder)
        plan = StagingPlan(
            str(table),
            folder,
            row,
            change.columns,
            self._options.by_day,
            self._options.upsert,
            self._options.registry,
        )
        files = tuple(stage(plan))
        remove_staged(table / folder, file_names(files))
        if not self._store.exists():
            self._store.create(self._application, relaxed(row))
        self._store.commit(Batch(self._application, batch_id, files, change))
        return True

    def compact(self) -> None:
        self._store.compact()

    def _check_application(self) -> None:
        found = self._store.application()
        if found != self._application:
            raise PipelineError(
                f"the table in {self._output / TABLE} was written with another checkpoint ({found}) than "
                f"that of this run ({self._application}): its records would come twice. Give this run a "
                "table of its own with --name NAME, or remove the table"
            )

    def _planned(self, batch_id: int, infer: Infer) -> ValueType:
        """Return the type of the batch's rows, which is the same in each attempt."""
        path = self._output / PLAN
        if path.exists():
            plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if plan["batch"] == batch_id and plan["application"] == self._application:
                return parse_json_schema(json.dumps(plan["schema"]))
        row = check_columns(self._row(infer))
        said = {"batch": batch_id, "application": self._application, "schema": json_schema_of(row)}
        write_whole(path, said)
        return row

    def _row(self, infer: Infer) -> ValueType:
        if self._schema is not None:
            return self._schema
        existing = closed(self._store.columns()) if self._store.exists() else None
        if not self._infer:
            if existing is None:
                raise SchemaError(
                    "the table needs columns: --set schema=FILE names a JSON Schema, --set schema=infer "
                    "takes them from the records"
                )
            return existing
        inferred = infer()
        if existing is not None:
            return extended(existing, inferred)
        if not inferred.fields:
            raise SchemaError("no record of the first batch is a JSON object: no columns can be inferred")
        return inferred
