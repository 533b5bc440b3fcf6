"""Turns the records of a task into rows in staged files, and into dead letters with the reason.

Runs in Spark's workers, on Arrow batches of records. Which record is rejected depends only on the record and
the plan, so that a batch that is run again rejects the same ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from nilometer.pipeline.errors import in_record
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
    """Why, without what differs from record to record."""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(slots=True)
class Counts:
    """What a task did with its records, but for the rejected ones."""

    read: int = 0
    rows: int = 0
    deletions: int = 0
    """Tombstones, each of which deletes the row of its key."""
    notes: dict[str, int] = field(default_factory=dict[str, int])
    """What is to be said of rows, and of how many."""


def staged_schema(plan: StagingPlan) -> pa.Schema:
    schema = arrow_schema(plan.columns)
    return pa.schema([*schema, pa.field(DELETED, pa.bool_())]) if plan.upsert else schema


def stage(plan: StagingPlan, batches: Iterable[Any]) -> Iterator[Rejected | StagedFile | Counts]:
    """Write the rows of a task's records; yield those without a row, and at the end files and counts."""
    counts = Counts()
    decode = json_decoder(plan.row) if plan.schemas is None else avro_decoder(plan.row, plan.schemas)
    with StagingWriter(Path(plan.table), plan.folder, staged_schema(plan)) as writer:
        for batch in batches:
            yield from _stage_batch(plan, decode, writer, _records(batch), counts)
        yield from writer.finish()
    counts.notes = dict(decode.notes)
    yield counts


def _records(batch: Any) -> list[dict[str, Any]]:
    """Return records whose time stamps are microseconds: a client may send such as Python has no time for."""
    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64())).to_pylist()


def _stage_batch(
    plan: StagingPlan, decode: Decoder, writer: StagingWriter, records: list[dict[str, Any]], counts: Counts
) -> Iterator[Rejected]:
    by_day: dict[date | None, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        counts.read += 1
        try:
            with in_record(record):
                row = _row_of(plan, decode, record)
        except RejectedValue as error:
            yield Rejected(record, error.reason, error.detail)
            continue
        if record["value"] is None:
            counts.deletions += 1
        else:
            counts.rows += 1
        by_day[_day_of(record["timestamp"]) if plan.by_day else None].append(row)
    for day, rows in by_day.items():
        writer.add(rows, day)


def _row_of(plan: StagingPlan, decode: Decoder, record: dict[str, Any]) -> dict[str, Any]:
    value = record["value"]
    if not plan.row.fields:
        raise RejectedValue("no column: no record of the batches so far is a JSON object with a value")
    if record["timestamp"] not in _TIMES:
        raise RejectedValue("the record's time stamp is outside of the years 1 to 9999")
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


def _day_of(timestamp_us: int) -> date:
    """Return the day in UTC."""
    return date(1970, 1, 1) + timedelta(days=timestamp_us // _DAY_US)


_DAY_US: Final = 86_400_000_000
_TIMES: Final = range(-719_162 * _DAY_US, 2_932_897 * _DAY_US)
"""The years 1 to 9999, in microseconds since 1970."""
