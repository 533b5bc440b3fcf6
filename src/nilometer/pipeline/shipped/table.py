"""table: a topic of JSON (or Avro) values -> a table of Delta Lake, Iceberg or Parquet for other programs.

    nilometer pipeline run table --topic orders --format delta --set schema=orders.schema.json

Each record becomes a row once: its value's properties are columns, and ``_key``, ``_partition``, ``_offset``
and ``_timestamp`` are the record's. The columns are those of a JSON Schema (``--set schema=FILE``), or are
inferred from the first batch (``--set schema=infer``) and kept from then on. Fields that come later become
columns too, and a schema may add and widen columns. A record that the columns cannot take goes to the topic
of dead letters (``--dead-letters``) with its headers and four more: ``dead.reason``, ``dead.topic``,
``dead.partition`` and ``dead.offset``; one that is too large for it, in part
(:mod:`nilometer.pipeline.tables.staging`).

``--set input=changes`` reads a database's change events, as the pipeline ``changelog`` does, and keeps the
database's table: a change upserts its row, and deletions, truncates and changed keys delete rows. ``_key`` is
the row's key as JSON, and ``_timestamp`` the time of its change.

``--set partition=day`` divides the table by the day of the timestamp, ``--set upsert=true`` keeps one row per
key and deletes those of tombstones, ``--set compact=20`` merges small files every 20 batches (Delta Lake).

Exactly once: tasks write Parquet files, and the driver commits them with the batch id. What happens in which
order is in :mod:`nilometer.pipeline.tables.table_writer`. Tables are written by the Python packages of Delta
Lake and Iceberg (``pip install 'nilometer[tables]'``), and need no jar.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.batches import Batch, send, start_batches
from nilometer.pipeline.changes.changed_rows import A_CHANGE, VERSION, VERSIONS, advance, parse
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.mapped_rows import mapped
from nilometer.pipeline.recognition import HEADERS, HEADERS_TYPE, RAW, RAW_TYPES, headers_of
from nilometer.pipeline.tables.avro_values import (
    AvroSchemas,
    newest_schema,
    parse_avro_schema,
    read_schemas,
    registry_at,
    schema_ids,
)
from nilometer.pipeline.tables.schemas import infer_part, joined, json_schema_of, parse_json_schema, settled
from nilometer.pipeline.tables.staged_files import StagedFile
from nilometer.pipeline.tables.staging import Counts, Rejected, StagingPlan, dead_letter, stage
from nilometer.pipeline.tables.table_writer import (
    INFER,
    NO_SCHEMA,
    Sources,
    TableFormat,
    TableOptions,
    TableWriter,
)
from nilometer.pipeline.tables.values import ValueType, struct, without_collisions
from nilometer.schema_registry.client import SchemaRegistry

SOURCE_OPTIONS = {**HEADERS, "maxOffsetsPerTrigger": "500000"}
"""A batch is bounded, since an upsert compares its keys on the driver."""

STAGED = f"file string, counts string, reason string, {RAW_TYPES}"
"""What tasks return: as JSON the files that they wrote and what they counted, and the records that they
rejected."""
CHANGES = "changes"
INFERRED = "partition int, offset bigint, schema string"
COUNTED = "id int, values bigint"


@dataclass(frozen=True)
class Settings:
    """What ``--set`` and ``--settings`` can change."""

    format: TableFormat = "delta"
    """The kind of table, also ``--format``."""
    schema: str = ""
    """The file of a JSON Schema, or infer. Empty: the columns that the table has."""
    partition: str = "none"
    """Whether the table is divided by the day of the timestamp: none or day."""
    upsert: bool = False
    """Whether a record replaces the row of its key."""
    input: str = "records"
    """What a record is: records, a row each; or changes, events of a database, whose rows the table keeps."""
    registry: str = ""
    """The URL of a schema registry: values are Avro, and the columns those of the topic's newest schema."""
    compact: int = 0
    """Merge small files every so many batches; 0: never."""

    def check(self) -> None:
        """Raise PipelineError for settings that cannot be followed."""
        self.options()
        self.row()

    def options(self) -> TableOptions:
        """Raises PipelineError."""
        if self.input not in ("records", CHANGES):
            raise PipelineError(f"--set input={self.input}: it is records or changes")
        if self.input == CHANGES and self.registry:
            raise PipelineError("--set input=changes reads events as JSON, and needs no --set registry")
        if self.partition not in ("none", "day"):
            raise PipelineError(f"--set partition={self.partition}: it is none or day")
        if self.compact < 0 or (self.compact and self.format != "delta"):
            raise PipelineError("--set compact: a number of batches, and for --format delta only")
        if self.registry and self.schema:
            raise PipelineError(
                "--set registry: the columns are those of the registry's schema, without --set schema"
            )
        options = TableOptions(self.format, self.partition == "day", self.upsert or self.input == CHANGES)
        options.check()
        return options

    def row(self) -> ValueType | None:
        """Return the rows' type from the file; None if there is none. Raises PipelineError."""
        if self.schema in ("", INFER):
            return None
        path = Path(self.schema)
        if not path.is_file():
            raise PipelineError(f"--set schema={self.schema}: there is no such file (or give schema=infer)")
        return parse_json_schema(path.read_text(encoding="utf-8"))


def start(
    records: DataFrame,
    output: str,
    *,
    dead_letters: Mapping[str, str],
    settings: Settings = Settings(),
    available_now: bool = False,
    seconds: int = 5,
) -> StreamingQuery:
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""
    check(output, settings)
    options, row = settings.options(), settings.row()
    registry = registry_at(settings.registry) if settings.registry else None
    of_changes = settings.input == CHANGES

    def write(batch: Batch) -> None:
        records = _changed_rows(batch, dead_letters) if of_changes else batch.records
        if of_changes and not options.store(Path(output)).exists():
            records = records.where("value is not null")  # there is no row to be deleted
        writer = TableWriter(Path(output).absolute(), query_id(output), options)
        if registry is None:
            present = records.where("value is not null")
            infer = partial(inferred, present) if settings.schema == INFER else None
            sources = Sources(row=lambda: row, infer=infer)
        else:
            sources = Sources(
                row=partial(newest_row, records, registry), avro=partial(written_with, records, registry)
            )
        stage = partial(staged, batch, records, dead_letters, of_changes=of_changes)
        written = writer.write(batch.number, stage, sources)
        batch.is_committed = True
        if not written and not batch.was_done():
            # The table has it from a version that kept no account.
            batch.account().read = batch.records.count()
            batch.account().add("results", "in the table already", batch.account().read)
        if written and settings.compact and (batch.number + 1) % settings.compact == 0:
            writer.compact()

    read = parse(records) if of_changes else records.withColumn("headers", headers_of(records))
    return start_batches("table", read, output, write, available_now=available_now, seconds=seconds)


def check(output: str, settings: Settings | None) -> None:
    """Raise PipelineError for settings that the table in ``output`` cannot follow."""
    settings = settings or Settings()
    if "://" in output:
        raise PipelineError(
            f"--output {output}: a table is written to a folder of this machine or a shared one"
        )
    store = settings.options().store(Path(output))  # it may be a table of another format
    if not settings.schema and not settings.registry and not store.exists():
        raise PipelineError(NO_SCHEMA)


def query_id(output: str) -> str:
    """Return the id of the query, which Spark keeps in the checkpoint: batch ids count within it."""
    text = Path(output, "checkpoint", "metadata").read_text(encoding="utf-8")
    return str(json.loads(text.splitlines()[-1])["id"])


# --- the steps of a batch


def _changed_rows(batch: Batch, dead_letters: Mapping[str, str]) -> DataFrame:
    """Return the rows that a batch has changed as records: their key, and no value if they are deleted.

    Raises PipelineError if the topic has changes of several tables.
    """
    lines = advance(batch, dead_letters)
    versions = batch.spark.read.schema(VERSION).parquet(batch.files.table(VERSIONS, batch.number))
    tables = sorted(row.table for row in versions.select("table").distinct().collect())
    if len(tables) > 1:
        raise PipelineError(
            f"the topic has changes of {' and '.join(tables)}: a table takes those of one. The pipeline "
            "changelog keeps several; Debezium writes a topic for each unless it is told otherwise"
        )
    rows = lines.where("newest and changed").select(
        F.coalesce("topic", "table").alias("topic"),
        "partition",
        "offset",
        F.timestamp_micros("valid_from").alias("timestamp"),
        F.col("key").cast("binary").alias("key"),
        F.when(~F.col("deleted"), F.col("row").cast("binary")).alias("value"),
        F.array().cast(HEADERS_TYPE).alias("headers"),
    )
    return batch.persisted(rows)


def newest_row(batch: DataFrame, registry: SchemaRegistry) -> ValueType | None:
    """Return the type of rows by the newest schema of the batch's topic; None if the batch has no record.

    The records of the batch are in the topic already, and so their schemas in the registry.
    """
    topic = batch.select("topic").first()
    return None if topic is None else parse_avro_schema(newest_schema(topic[0], registry))


def written_with(batch: DataFrame, registry: SchemaRegistry) -> AvroSchemas:
    """Return the schemas of the batch's values, which the driver reads from the registry."""

    def count_task(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for one in batches:
            for number, count in schema_ids(one.column("value").to_pylist()).items():
                yield {"id": number, "values": count}

    ids: Counter[int] = Counter()
    for row in mapped(batch.select("value"), count_task, COUNTED).collect():
        ids[row["id"]] += row["values"]
    return read_schemas(ids, registry)


def inferred(batch: DataFrame) -> ValueType:
    """Return the type of the batch's rows: of two that do not fit, that of the first record counts."""

    def infer_task(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
        for one in batches:
            if one.num_rows:
                part = without_collisions(infer_part(one.column("value").to_pylist()))
                said = json.dumps(json_schema_of(part))
                yield {**one.select(["partition", "offset"]).slice(0, 1).to_pylist()[0], "schema": said}

    found = mapped(batch.select("value", "partition", "offset"), infer_task, INFERRED).collect()
    kind = struct(others="empty")
    for row in sorted(found, key=lambda one: (one.partition, one.offset)):
        schema = json.loads(row.schema)
        if schema["properties"]:
            kind = joined(kind, parse_json_schema(row.schema))
    return settled(kind)


def staged(
    batch: Batch,
    records: DataFrame,
    dead_letters: Mapping[str, str],
    plan: StagingPlan,
    *,
    of_changes: bool = False,
) -> list[StagedFile]:
    """Have the tasks write the batch's files, send the rejected records, and write the account.

    Rows ``of_changes`` are in the account already, as changes; those that are rejected are none in the table.
    """

    done = batch.persisted(mapped(records, lambda batches: _staged_rows(plan, batches), STAGED))
    account = batch.account()
    files: list[StagedFile] = []
    for row in done.where("reason is null").select("file", "counts").collect():
        if row.file is not None:
            files.append(StagedFile(**json.loads(row.file)))
            continue
        counts = Counts(**json.loads(row.counts))
        if not of_changes:
            account.read += counts.read
            account.add("results", "a row" if not plan.upsert else "the row of its key", counts.rows)
            account.add("results", "a deletion of its key", counts.deletions)
        for note, rows in counts.notes.items():
            batch.notes[note] = batch.notes.get(note, 0) + rows
    reasons = done.where("reason is not null").groupBy("reason").count().collect()
    for row in reasons:
        account.add("rejected", row.reason, row["count"])
        if of_changes:
            account.add("results", A_CHANGE, -row["count"])
    if reasons:
        # From one task, so that one transaction has all of them. A repeated batch has the same.
        writer = "rejected-rows" if of_changes else "dead-letters"
        send(done.where("reason is not null").select(*RAW), dead_letters, writer)
    batch.finish()  # before the commit: a batch that the table has is not staged again
    return files


def _staged_rows(plan: StagingPlan, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for one in stage(plan, batches):
        match one:
            case Rejected():
                yield {"reason": one.reason, **dead_letter(one)}
            case Counts():
                yield {"counts": json.dumps(asdict(one))}
            case StagedFile():
                yield {"file": json.dumps(asdict(one))}


# --- the table


def results(
    spark: SparkSession, output: str, top: int = 10, settings: Settings = Settings()
) -> dict[str, DataFrame]:
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
    store = settings.options().store(Path(output))
    if not store.exists():
        return {"Table": spark.createDataFrame([], TABLE_ROW)}
    totals = store.totals()
    table = [(str(Path(output, "table")), totals.version, totals.rows, totals.files, totals.size)]
    columns = [(name, json.dumps(one)) for name, one in json_schema_of(store.columns())["properties"].items()]
    commits = [(one.batch_id, one.rows, one.at) for one in store.commits()[-top:]]
    return {
        "Table": spark.createDataFrame(table, TABLE_ROW),
        "Columns": spark.createDataFrame(columns, "column string, type string"),
        f"Last {top} commits": spark.createDataFrame(commits, COMMIT).orderBy(F.col("batch").desc()),
    }


TABLE_ROW = "table string, version string, rows bigint, files bigint, bytes bigint"
COMMIT = "batch bigint, rows bigint, committed_at timestamp"


def charts(spark: SparkSession, output: str, settings: Settings = Settings()) -> dict[str, DataFrame]:
    """Return the plots by title: the first column is the x axis, the others are the y values."""
    store = settings.options().store(Path(output))
    commits = [(one.batch_id, one.rows, one.at) for one in (store.commits() if store.exists() else ())]
    return {
        "Rows per commit": spark.createDataFrame(commits, COMMIT).orderBy("batch").select("batch", "rows")
    }
