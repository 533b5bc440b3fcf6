"""Orders the steps of a batch, so that a table has each record once, whenever the process is killed.

1. A batch that the table has already is skipped: Spark repeats a batch whose end it has not recorded.
2. The plan, ``plan.json``, fixes the columns with which the batch is written, and the schemas of its Avro
   values. A repeated batch uses the plan of its first attempt, also if a schema was changed in between: it
   rejects the same records. A schema that the table cannot follow is refused before it is part of a plan.
3. What a killed attempt has left is removed; then tasks write the files of the batch.
4. Rejected records are sent to the topic of dead letters, and the account of the batch is written.
5. Rows, columns and batch id are committed at once.

As long as no columns are known, since no record has had a value to infer them from, all records are rejected
and there is no table.

Without Spark: the caller stages the files, sends the dead letters and writes the account.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.tables.avro_values import AvroSchemas, avro_schemas_of
from nilometer.pipeline.tables.delta_store import DeltaStore
from nilometer.pipeline.tables.iceberg_store import IcebergStore
from nilometer.pipeline.tables.parquet_store import ParquetStore
from nilometer.pipeline.tables.schemas import (
    Change,
    closed,
    decide_change,
    extended,
    json_schema_of,
    parse_json_schema,
)
from nilometer.pipeline.tables.staged_files import StagedFile, remove_staged, require_seen, write_whole
from nilometer.pipeline.tables.staging import StagingPlan
from nilometer.pipeline.tables.table_store import Batch, TableStore, file_names
from nilometer.pipeline.tables.values import (
    SchemaError,
    ValueType,
    check_columns,
    relaxed,
    without_collisions,
)

# The plan of a batch, ``plan.json``: what decides which of its records are rows, in each attempt.

PLAN: Final = "plan.json"
"""The file of the plan, in the run's folder."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    row: ValueType
    """The type that values must have."""
    schemas: AvroSchemas | None = None
    """What Avro values were written with; None: values are JSON."""


def saved_plan(output: Path, application: str, batch_id: int) -> BatchPlan | None:
    """Return the plan that an earlier attempt of the batch saved; None if there is none."""
    path = output / PLAN
    if not path.exists():
        return None
    said: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if said["batch"] != batch_id or said["application"] != application:
        return None
    schemas = said.get("avro")
    row = parse_json_schema(json.dumps(said["schema"]))
    return BatchPlan(row, None if schemas is None else avro_schemas_of(schemas))


def save_plan(output: Path, application: str, batch_id: int, plan: BatchPlan) -> None:
    """Replace the plan of the batch before."""
    said = {
        "batch": batch_id,
        "application": application,
        "schema": json_schema_of(plan.row),
        "avro": None if plan.schemas is None else plan.schemas.as_json(),
    }
    write_whole(output / PLAN, said)


TABLE: Final = "table"
"""The table's folder, in the run's."""
INFER: Final = "infer"
NO_SCHEMA: Final = (
    "the table needs columns: --set schema=FILE names a JSON Schema, --set schema=infer takes them from the "
    "records"
)

TableFormat = Literal["delta", "iceberg", "parquet"]
Stage = Callable[[StagingPlan], Sequence[StagedFile]]
"""Writes the batch's files, sends the rejected records as dead letters and writes the account; returns the
files."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a table is, from its first batch on."""

    format: TableFormat = "delta"
    by_day: bool = False
    upsert: bool = False

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


@dataclass(frozen=True, slots=True)
class Sources:
    """What a batch is planned from. Nothing is asked for a batch that the table has, or that has its plan."""

    row: Callable[[], ValueType | None] = lambda: None
    """Returns the type of the rows that a schema describes; None: the columns are the table's."""
    infer: Callable[[], ValueType] | None = None
    """Infers the type of the rows from the batch's records, which add columns to the table; None: none do."""
    avro: Callable[[], AvroSchemas] | None = None
    """Returns what the batch's Avro values were written with; None: values are JSON."""


class TableWriter:
    """Writes the batches of one query into one table."""

    def __init__(self, output: Path, application: str, options: TableOptions) -> None:
        """Raises PipelineError if there is a table of another format."""
        self._output = output
        self._application = application
        self._options = options
        self._store = options.store(output)

    def write(self, batch_id: int, stage: Stage, sources: Sources) -> bool:
        """Write a batch; return False if the table has it already. Raises PipelineError."""
        existing: ValueType | None = None
        if self._store.exists():
            self._check_application()
            last = self._store.last_batch(self._application)
            if last is not None and batch_id <= last:
                return False
            existing = self._store.columns()
        plan, change = self._planned(batch_id, existing, sources)
        folder = self._store.folder_of(batch_id)
        table = self._output / TABLE
        remove_staged(table / folder)
        staging = StagingPlan(
            str(table),
            folder,
            plan.row,
            change.columns,
            self._options.by_day,
            self._options.upsert,
            plan.schemas,
        )
        files = tuple(stage(staging))
        if not plan.row.fields:
            remove_staged(table / folder)
            return True
        require_seen(table, files)
        remove_staged(table / folder, file_names(files))
        if existing is None:
            self._store.create(self._application, relaxed(plan.row))
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

    def _planned(
        self, batch_id: int, existing: ValueType | None, sources: Sources
    ) -> tuple[BatchPlan, Change]:
        """Return the plan of the batch, which is the same in each attempt, and what it changes."""
        plan = saved_plan(self._output, self._application, batch_id)
        if plan is not None:
            return plan, decide_change(existing or relaxed(plan.row), plan.row)
        row = _row(existing, sources)
        if not row.fields:
            return BatchPlan(row), Change(row)
        check_columns(row)
        change = decide_change(existing or relaxed(row), row)  # it may refuse: then nothing is saved
        plan = BatchPlan(row, sources.avro() if sources.avro is not None else None)
        save_plan(self._output, self._application, batch_id, plan)
        return plan, change


def _row(existing: ValueType | None, sources: Sources) -> ValueType:
    given = sources.row()
    if given is not None:
        return given
    if sources.infer is None:
        if existing is None:
            raise SchemaError(NO_SCHEMA)
        return closed(existing)
    inferred = sources.infer()
    return without_collisions(extended(closed(existing), inferred) if existing is not None else inferred)
