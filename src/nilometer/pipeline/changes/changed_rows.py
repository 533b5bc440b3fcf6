"""The rows of a database's tables, from batch to batch: change events in, versions of rows out.

``advance`` reads the newest version of every key from the folder ``versions`` of the batch before, applies
the changes of a batch to it, and writes the folder of the
batch. What becomes of each record goes into the account. A row that has just got another key may need a
column of its version under the old one: until that arrives, the change waits in the run's state, still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from nilometer.pipeline.batches import KEPT, Batch, RunFiles, send_letters
from nilometer.pipeline.changes.change_events import Change, LeftOut, completed, decode_change
from nilometer.pipeline.errors import PipelineError, RejectedValue, in_record
from nilometer.pipeline.events import RECORD, RECORD_TYPE
from nilometer.pipeline.mapped_rows import mapped, rows_in
from nilometer.pipeline.recognition import headers_of

# Orders the changes of rows, and says which versions each row had, and from and until when. Pure.
#
# A change is newer than another one of its row if its position in the database's log is; what is not newer
# than the newest known version is a repeat. A change that arrives after the row of a snapshot is newer than
# that, also if its position is not: its transaction was open when the snapshot was taken.
#
# A truncate ends all versions of its table whose position is below its own, also those that arrive after it.
# So does a snapshot of the whole table, for the rows that were known before it.
#
# Invariants: of each key one version is the newest; positions of a key's versions never decrease; a version
# is valid until the next one of its key begins. A deleted version has the row that was deleted: columns that
# an event does not have are taken from it. What a truncate deletes keeps its position, since changes that
# precede the truncate may arrive after it, through another partition.

Position = tuple[int, bool, int, int]

NOT_COMPLETE: Final = (
    "the event does not have all columns, and no earlier version of the row is known: REPLICA IDENTITY FULL "
    "adds them"
)


@dataclass(frozen=True, slots=True)
class Version:
    key: str
    row: str | None
    deleted: bool
    snapshot: int
    """The position of the row's newest snapshot, 0 without one: no change that arrives later precedes it."""
    lsn: int
    seq: int
    valid_from: int
    """In microseconds."""
    valid_until: int | None = None
    newest: bool = True
    number: int | None = None
    """The number of the change that made it; None if it is the known one, or what a truncate left."""

    @property
    def position(self) -> Position:
        return position(self.snapshot, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class Emptied:
    """All rows of a table were deleted, by a truncate or, seen by a snapshot, while changes were not read."""

    lsn: int
    seq: int
    at_us: int
    known_only: bool = False
    """Only rows that were known before: of a snapshot."""

    @property
    def position(self) -> Position:
        return position(0, self.lsn, self.seq)


@dataclass(frozen=True, slots=True)
class Outcome:
    versions: list[Version]
    """All versions of the keys that are valid after the known ones began, in no order of keys."""
    repeated: list[int]
    """The changes, by their number, that are not newer than what is known."""
    rejected: list[int]
    """The changes whose row cannot be completed."""
    waiting: list[int]
    """The changes that need the row's last version under its old key, which has not arrived."""


def position(snapshot: int, lsn: int, seq: int) -> Position:
    return max(snapshot, lsn), seq >= 0, lsn, seq


def versions_of(known: Iterable[Version], changes: Sequence[Change], emptied: Sequence[Emptied]) -> Outcome:
    """Return what ``changes``, in the order of their arrival, make of the ``known`` newest versions.

    They are of one key, or of several that a row had. ``emptied`` are in the order of their positions.
    """
    chains = {one.key: [one] for one in known}
    known_keys = set(chains)
    snapshots = {key: chain[-1].snapshot for key, chain in chains.items()}
    ordered: list[tuple[Position, int, Version]] = []
    for number, change in enumerate(changes):
        assert change.key is not None
        if change.snapshot:
            snapshots[change.key] = max(snapshots.get(change.key, 0), change.lsn)
        deleted = change.op == "d"
        base = snapshots.get(change.key, 0)
        new = Version(
            change.key, change.row, deleted, base, change.lsn, change.seq, change.at_us, number=number
        )
        ordered.append((new.position, number, new))
    outcome = Outcome([], [], [], [])
    waiting: set[str] = set()
    # A row that gets another key is deleted and created at one position: its last row is needed after that.
    for where, number, new in sorted(ordered, key=lambda one: (one[0], not one[2].deleted, one[1])):
        chain = chains.setdefault(new.key, [])
        _empty(chain, emptied, where, new.key in known_keys)
        if chain and where <= chain[-1].position:
            outcome.repeated.append(number)
            continue
        before = _before(new, changes[number], chains)
        if new.key in waiting or before == "waiting":
            waiting.add(new.key)
            outcome.waiting.append(number)
            continue
        row = _row(new, changes[number], before)
        if row is None and not new.deleted:
            outcome.rejected.append(number)
            continue
        _append(chain, replace(new, row=row))
    for key, chain in chains.items():
        _empty(chain, emptied, None, key in known_keys)
        outcome.versions.extend(chain)
    return outcome


def _before(
    new: Version, change: Change, chains: Mapping[str, Sequence[Version]]
) -> Version | Literal["waiting"] | None:
    """Return the version before a change, of the row's old key if it has just got another one."""
    chain = chains[new.key]
    if (chain and not chain[-1].deleted) or not change.missing or change.old_key is None:
        return chain[-1] if chain else None
    of_old_key = chains.get(change.old_key, ())
    for one in of_old_key:
        if one.deleted and (one.lsn, one.seq) == (new.lsn, new.seq):
            return one
    # The records of the two keys may be in two partitions.
    return "waiting" if not of_old_key or of_old_key[-1].lsn < new.lsn else None


def _row(new: Version, change: Change, before: Version | None) -> str | None:
    """Return the row of a version, complete; None if it cannot be. A deleted one keeps the last row."""
    if new.deleted:
        return before.row if before is not None else None
    if not change.missing or new.row is None:
        return new.row
    if before is None or before.row is None:
        return None
    return completed(new.row, change.missing, before.row)


def _empty(chain: list[Version], emptied: Sequence[Emptied], until: Position | None, known: bool) -> None:
    """End the row by each deletion of all rows after its newest version, and before ``until``."""
    for one in emptied:
        if not chain or chain[-1].deleted or (one.known_only and not known):
            continue
        if chain[-1].position < one.position and (until is None or one.position < until):
            _append(chain, replace(chain[-1], deleted=True, valid_from=one.at_us, number=None))


def _append(chain: list[Version], new: Version) -> None:
    if chain:
        chain[-1] = replace(chain[-1], valid_until=new.valid_from, newest=False)
    chain.append(new)


CHANGE = (
    "table string, key string, op string, row string, lsn bigint, seq bigint, snapshot boolean, "
    "at_us bigint, missing array<string>, old_key string"
)
VERSION = (
    "table string, key string, row string, deleted boolean, snapshot bigint, lsn bigint, seq bigint, "
    "valid_from timestamp"
)
"""Without a key: a truncate or a snapshot, which ended all rows of the table whose position is below."""
LINE = (
    "table string, key string, row string, deleted boolean, snapshot bigint, lsn bigint, seq bigint, "
    "valid_from bigint, valid_until bigint, newest boolean, changed boolean, topic string, partition int, "
    "offset bigint"
)
"""A version, whether the batch has changed it, and the place of the record that did."""
A_CHANGE = "a change"
REPEATED = "a change that is not newer than its row's version"
VERSIONS = "versions"
WAITING = "waiting"
"""What becomes of a change that needs the row's version under its old key, until that arrives."""
EMPTIED_MAX = 100
"""The number of truncates and snapshots of a table that are kept, for changes that arrive after them."""
OF_SNAPSHOT = -2
"""The ``seq`` of what a snapshot ended: before the rows of the snapshot."""

_OF_CHANGE = tuple(one.name for one in fields(Change))
_OF_VERSION = tuple(one.name for one in fields(Version))
AllEmptied = Mapping[str, Sequence[Emptied]]
"""What ended all rows of a table, by table, in the order of the database's log."""


def parse(records: DataFrame) -> DataFrame:
    """Return a row per record with the columns ``CHANGE``; ``_record`` says what is no change of a row."""
    given = records.select(
        "topic",
        "partition",
        "offset",
        F.unix_micros("timestamp").alias("recorded"),
        "key",
        "value",
        headers_of(records).alias("headers"),
    )
    return mapped(given, lambda batches: _parsed(rows_in(batches)), f"{CHANGE}, {RECORD_TYPE}")


def _parsed(records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        recorded = record.pop("recorded")
        row: dict[str, Any] = {}
        fate = reason = detail = None
        with in_record(record):
            try:
                change = decode_change(record["key"], record["value"], record["headers"] or (), recorded)
                row = {name: getattr(change, name) for name in _OF_CHANGE}
            except LeftOut as error:
                fate, reason = "left out", str(error)
            except RejectedValue as error:
                fate, reason, detail = "rejected", error.reason, error.detail or None
        if fate != "rejected" and not row.get("missing"):
            record |= {"key": None, "value": None, "headers": ()}
        yield row | {RECORD: record | {"fate": fate, "reason": reason, "detail": detail}}


def advance(batch: Batch, dead_letters: Mapping[str, str]) -> DataFrame:
    """Apply the batch's changes; return a line per version of the changed rows, and per record.

    ``newest`` lines are the present versions; the others have ended. Rejected records go to the topic of dead
    letters. Raises PipelineError if the versions before are those of an earlier release.
    """
    if batch.before is None and batch.number:
        raise PipelineError(
            f"{batch.files.output} was written by an earlier version, whose rows have no table: begin "
            "another run with --name NAME, which reads the topic again"
        )
    known = versions(batch.spark, batch.files.output, before=batch.number)
    emptied, emptied_now, markers = _emptied(batch, known)
    changes = batch.records.unionByName(batch.state(WAITING, f"{CHANGE}, {RECORD_TYPE}"))
    touched, untouched = _split(known, changes, emptied_now)
    lines = batch.persisted(_lines(touched, changes, emptied))
    _settle(batch, changes, lines, dead_letters)
    newest = lines.where("newest").select(*version_columns())
    batch.write(VERSIONS, newest.unionByName(untouched).unionByName(markers))
    batch.files.remove(VERSIONS, keep=lambda number: number > batch.number - KEPT)
    return lines


def versions(spark: SparkSession, output: str, before: int | None = None) -> DataFrame:
    """Return the newest version of every key after the last batch (earlier than ``before``, if given).

    A row without a key is a truncate or a snapshot of its table.
    """
    files = RunFiles(spark, output)
    last = files.last(before=before)
    if last is None:
        return spark.createDataFrame([], VERSION)
    return spark.read.schema(VERSION).parquet(files.table(VERSIONS, last.number))


def version_columns() -> list[Column]:
    """Return the columns ``VERSION`` of lines."""
    names = ("table", "key", "row", "deleted", "snapshot", "lsn", "seq")
    return [*map(F.col, names), F.timestamp_micros("valid_from").alias("valid_from")]


# --- the steps of a batch


def _emptied(batch: Batch, known: DataFrame) -> tuple[AllEmptied, list[str], DataFrame]:
    """Return what ended all rows of tables, the tables with something new of it, and what is kept of it."""
    at_us = F.unix_micros("valid_from").alias("at_us")
    stored = known.where("key is null").select("table", "lsn", "seq", at_us).collect()
    ended = {(row.table, row.lsn, row.seq): Emptied(row.lsn, row.seq, row.at_us) for row in stored}
    is_truncate = F.col("op") == "t"
    found = (
        batch.records.where("op = 't' or snapshot")
        .select("table", is_truncate.alias("is_truncate"), "lsn", "seq", "at_us")
        .withColumn("seq", F.when(F.col("is_truncate"), F.col("seq")).otherwise(OF_SNAPSHOT))
        .groupBy("table", "is_truncate", "lsn", "seq")
        .agg(F.min("at_us").alias("at_us"), F.count("*").alias("records"))
        .collect()
    )
    new = {
        (row.table, row.lsn, row.seq): Emptied(row.lsn, row.seq, row.at_us, known_only=not row.is_truncate)
        for row in found
        if (row.table, row.lsn, row.seq) not in ended
    }
    for row in found:
        if row.is_truncate:
            is_new = int((row.table, row.lsn, row.seq) in new)
            batch.account().add("results", "a truncate", is_new)
            batch.account().add("repeated", REPEATED, row.records - is_new)
    all_of: dict[str, list[Emptied]] = {}
    for (table, _, _), one in sorted((ended | new).items(), key=lambda pair: pair[1].position):
        all_of.setdefault(table, []).append(one)
    kept = [_marker(table, one) for table, of_table in all_of.items() for one in of_table[-EMPTIED_MAX:]]
    # What a snapshot ended before this batch has been done: it was of the rows known then.
    effective = {
        table: [one for one in of_table if one.seq != OF_SNAPSHOT or one.known_only]
        for table, of_table in all_of.items()
    }
    return effective, sorted({table for table, _, _ in new}), batch.spark.createDataFrame(kept, VERSION)


def _split(known: DataFrame, changes: DataFrame, tables: list[str]) -> tuple[DataFrame, DataFrame]:
    """Return the known versions that the batch may change, all of ``tables`` among them, and the others."""
    keys = changes.where("key is not null").select("table", "key")
    old = changes.where("old_key is not null").select("table", F.col("old_key").alias("key"))
    of_changes = keys.union(old).distinct()
    is_row, of_tables = F.col("key").isNotNull(), F.col("table").isin(tables)
    others = known.where(is_row & ~of_tables)
    touched = others.join(of_changes, ["table", "key"], "left_semi").union(known.where(is_row & of_tables))
    untouched = others.join(of_changes, ["table", "key"], "left_anti")
    return touched, untouched


def _lines(known: DataFrame, changes: DataFrame, emptied: AllEmptied) -> DataFrame:
    """Return the versions that ``changes`` make of those known, and each change with what became of it."""
    names = ("key", "row", "deleted", "snapshot", "lsn", "seq")
    stored = F.struct(*names, F.unix_micros("valid_from").alias("valid_from")).alias("known")
    of_change = [one for one in changes.columns if one != "table"]
    nothing = F.lit(None)
    given = known.select("table", "key", stored, nothing.alias("change")).unionByName(
        changes.where(f"{RECORD}.fate is null and key is not null").select(
            "table", "key", nothing.alias("known"), F.struct(*of_change).alias("change")
        )
    )
    groups = _groups(changes)
    if groups:
        table = changes.sparkSession.createDataFrame(groups, "table string, key string, group string")
        given = given.join(F.broadcast(table), ["table", "key"], "left")
    else:
        given = given.withColumn("group", nothing.cast("string"))
    place = [F.col(f"change.{RECORD}.{name}") for name in ("partition", "offset")]
    given = (
        given.withColumn("group", F.coalesce("group", "key"))
        .repartition("table", "group")
        .sortWithinPartitions("table", "group", *place)
    )
    return mapped(given, lambda batches: _fold(rows_in(batches), emptied), f"{LINE}, {RECORD_TYPE}")


def _groups(changes: DataFrame) -> list[tuple[str, str, str]]:
    """Return the keys that one row had after another, if an event needs the columns that it had before."""
    pairs = changes.where("old_key is not null").select("table", "old_key", "key").distinct().collect()
    group_of: dict[tuple[str, str], str] = {}
    for row in pairs:
        table: str = row.table
        places = [(table, str(key)) for key in (row.old_key, row.key)]
        first, second = (group_of.get(place, place[1]) for place in places)
        joined = [place for place, group in group_of.items() if place[0] == table and group == second]
        group_of |= dict.fromkeys([*places, *joined], first)
    return [(table, key, group) for (table, key), group in group_of.items()]


def _fold(rows: Iterator[dict[str, Any]], emptied: AllEmptied) -> Iterator[dict[str, Any]]:
    for (table, _), group in groupby(rows, key=lambda row: (row["table"], row["group"])):
        of_group = list(group)
        known = [Version(**row["known"]) for row in of_group if row["known"] is not None]
        given = [row["change"] for row in of_group if row["change"] is not None]
        records = [one.pop(RECORD) for one in given]
        changes = [Change(table=table, **one) for one in given]
        outcome = versions_of(known, changes, emptied.get(table, ()))
        for one in outcome.versions:
            place: dict[str, Any] = records[one.number] if one.number is not None else {}
            row = {name: getattr(one, name) for name in _OF_VERSION}
            yield {"table": table, "changed": one not in known, **place, **row}
        became = dict.fromkeys(outcome.repeated, ("repeated", REPEATED, None))
        became |= dict.fromkeys(outcome.rejected, ("rejected", NOT_COMPLETE, table))
        became |= dict.fromkeys(outcome.waiting, (WAITING, None, None))
        for number, record in enumerate(records):
            said = became.get(number, ("results", A_CHANGE, None))
            yield {RECORD: record | dict(zip(("fate", "reason", "detail"), said, strict=True))}


def _settle(batch: Batch, changes: DataFrame, lines: DataFrame, dead_letters: Mapping[str, str]) -> None:
    """Count what became of each record, send the rejected ones as dead letters, and keep those that wait."""
    account = batch.account()
    account.read = batch.records.count()
    records = batch.records.where(f"{RECORD}.fate is not null").select(RECORD)
    records = records.union(lines.where(f"{RECORD} is not null").select(RECORD))
    for row in records.groupBy(f"{RECORD}.fate", f"{RECORD}.reason").count().collect():
        if row.fate == WAITING:
            account.open += row["count"]
        else:
            account.add(row.fate, row.reason, row["count"])
    if account.of("rejected"):
        send_letters(records.where(f"{RECORD}.fate = 'rejected'"), dead_letters)
    place = [F.col(f"{RECORD}.{name}").alias(name) for name in ("partition", "offset")]
    waiting = records.where(f"{RECORD}.fate = '{WAITING}'").select(*place)
    placed = changes.select("*", *place)
    batch.keep(
        "waiting", placed.join(waiting, ["partition", "offset"], "left_semi").drop("partition", "offset")
    )


def _marker(table: str, one: Emptied) -> tuple[Any, ...]:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=one.at_us)
    return table, None, None, True, 0, one.lsn, one.seq, at
