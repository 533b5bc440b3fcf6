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

from nilometer.client.producer.batch import size_bound
from nilometer.pipeline.errors import RejectedValue, in_record
from nilometer.pipeline.tables.avro_values import AvroSchemas, avro_decoder
from nilometer.pipeline.tables.staged_files import StagedFile, StagingWriter
from nilometer.pipeline.tables.table_store import arrow_schema
from nilometer.pipeline.tables.values import (
    KEY,
    OFFSET,
    PARTITION,
    TIMESTAMP,
    Decoder,
    ValueType,
    json_decoder,
)

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


# A rejected record as a dead letter: its key, value and headers, with four headers more. Pure.
#
# A record may be larger than what a producer may send. Of such a record the letter has the beginning of the
# value only, and its size in ``dead.size``; the topic that the record is from has the rest.

CARRIED_BYTES_MAX: Final = 900_000
"""Key, value and headers of a record that its letter has whole. With the headers that the letter adds it is
below 1 MiB: the default of ``max.request.size``, and of ``max.message.bytes`` of the letters' topic."""
PART_BYTES_MAX: Final = 64 * 1024
"""What a letter has of a larger record: that much of its value; key and headers, if they are no larger."""
REASON_CHARACTERS_MAX: Final = 1_000


def dead_letter(one: Rejected) -> dict[str, Any]:
    """Return the columns of the letter: key, value and headers."""
    record = one.record
    key: bytes | None = record["key"]
    value: bytes | None = record["value"]
    headers: list[dict[str, Any]] = record.get("headers") or []
    said = {
        "dead.reason": str(one)[:REASON_CHARACTERS_MAX],
        "dead.topic": record["topic"],
        "dead.partition": str(record["partition"]),
        "dead.offset": str(record["offset"]),
    }
    pairs = [(header["key"], header["value"]) for header in headers]
    if size_bound(key, value, pairs) > CARRIED_BYTES_MAX:
        of_headers = sum(len(name.encode(errors="replace")) + len(own or b"") for name, own in pairs)
        said["dead.size"] = str(len(key or b"") + len(value or b"") + of_headers)
        key = key if len(key or b"") <= PART_BYTES_MAX else None
        value = value[:PART_BYTES_MAX] if value is not None else None
        headers = headers if size_bound(None, None, pairs) <= PART_BYTES_MAX else []
    added = [{"key": name, "value": text.encode(errors="replace")} for name, text in said.items()]
    return {"key": key, "value": value, "headers": [*headers, *added]}
