"""Turns the records of a task into rows in staged files, and into dead letters with the reason.

Runs in Spark's workers, on Arrow batches of records. Which record is rejected depends only on the record and
the plan, so that a batch that is run again rejects the same ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from nilometer.pipeline.tables.arrow_types import arrow_schema
from nilometer.pipeline.tables.avro_schemas import AvroSchemas
from nilometer.pipeline.tables.avro_values import avro_decoder
from nilometer.pipeline.tables.staged_files import StagedFile, StagingWriter
from nilometer.pipeline.tables.value_types import KEY, OFFSET, PARTITION, TIMESTAMP, ValueType
from nilometer.pipeline.tables.values import Decoder, RejectedValue, json_decoder

DELETED: Final = "_deleted"
"""The column of staged rows that tells whether the record is a tombstone."""


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """What the tasks of a batch need to know."""

    table: str
    """The table's folder."""
    folder: str
    """The folder of the batch's files, relative to the table's."""
    row: ValueType
    """The type that values must have."""
    columns: ValueType
    """The table's columns, which may be more and wider."""
    by_day: bool = False
    upsert: bool = False
    """Whether a record replaces the row of its key, and one without a value deletes it."""
    schemas: AvroSchemas | None = None
    """What Avro values were written with; None: values are JSON."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that the table cannot take."""

    record: dict[str, Any]
    reason: str


def staged_schema(plan: StagingPlan) -> pa.Schema:
    schema = arrow_schema(plan.columns)
    return pa.schema([*schema, pa.field(DELETED, pa.bool_())]) if plan.upsert else schema


def stage(plan: StagingPlan, batches: Iterable[Any]) -> Iterator[Rejected | StagedFile]:
    """Write the rows of a task's records; yield the records without a row, and at the end the files."""
    decode = json_decoder(plan.row) if plan.schemas is None else avro_decoder(plan.row, plan.schemas)
    with StagingWriter(Path(plan.table), plan.folder, staged_schema(plan)) as writer:
        for batch in batches:
            yield from _stage_batch(plan, decode, writer, batch.to_pylist())
        yield from writer.finish()


def _stage_batch(
    plan: StagingPlan, decode: Decoder, writer: StagingWriter, records: list[dict[str, Any]]
) -> Iterator[Rejected]:
    by_day: dict[date | None, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        try:
            row = _row_of(plan, decode, record)
        except RejectedValue as error:
            yield Rejected(record, str(error))
            continue
        by_day[_day_of(record["timestamp"]) if plan.by_day else None].append(row)
    for day, rows in by_day.items():
        writer.add(rows, day)


def _row_of(plan: StagingPlan, decode: Decoder, record: dict[str, Any]) -> dict[str, Any]:
    value = record["value"]
    if plan.upsert and record["key"] is None:
        raise RejectedValue("the record has no key, by which rows are replaced")
    if value is None and not plan.upsert:
        raise RejectedValue(
            "the record has no value; with --set upsert=true it would delete the row of its key"
        )
    row = decode(value) if value is not None else {}
    row[KEY], row[PARTITION] = record["key"], record["partition"]
    row[OFFSET], row[TIMESTAMP] = record["offset"], record["timestamp"]
    if plan.upsert:
        row[DELETED] = value is None
    return row


def _day_of(timestamp: datetime | None) -> date:
    """Return the day in UTC; 1970-01-01 for a record without a time."""
    return timestamp.astimezone(UTC).date() if timestamp is not None else date(1970, 1, 1)
