"""The batches of a pipeline: each writes its tables, its state and its account, whole and once.

Spark's checkpoint gives every batch an id and fixes its offsets before the batch runs, so a batch that is run
again after a crash has the same records. The query itself keeps nothing: what a batch must know of the ones
before, such as the windows that are still open, is a table too. A run's folder has

- ``<table>/batch=N``: the rows that batch N has written; a repeated batch replaces them;
- ``state/<name>/batch=N``: what is open after batch N;
- ``account/batch=N.json``: what became of the records of batch N and of all batches up to it, the newest
  event time of each input and the watermark.

The account is written last: a batch is done when its account is there. So a batch of which any part failed
leaves nothing that counts, and starts again from what batch N - 1 left.

The event-time watermark is the newest time of the events taken so far (of the input that is furthest behind),
minus the lateness; it never decreases. An event is late if its result was written when the watermark passed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from nilometer.pipeline.account import Account, accounts_json, accounts_of, joined_accounts
from nilometer.pipeline.errors import PipelineError
from nilometer.pipeline.events import PLACE, RECORD, EventSettings
from nilometer.pipeline.mapped_rows import mapped, rows_in
from nilometer.pipeline.recognition import RAW, RAW_TYPES

KEPT: Final = 3
"""The number of batches whose state and account are kept: a batch needs only those of the one before."""
OPEN_FOLDER: Final = "batch=open"
"""The folder of a table's rows that ``--finish`` has written, and that the next run removes."""
INPUT: Final = "_input"
"""The column with the name of a record's input."""
_ACCOUNT, _STATE = "account", "state"


@dataclass(frozen=True, slots=True)
class Done:
    """What a batch that is done has said in its account."""

    number: int
    accounts: Mapping[str, Account]
    """Of this batch, by input."""
    totals: Mapping[str, Account]
    """Of all batches up to this one."""
    newest: Mapping[str, int]
    """The newest time of the events taken so far, by input, in microseconds since 1970."""
    watermark_us: int | None
    notes: Mapping[str, int] = field(default_factory=dict[str, int])
    """What else is to be said of the rows of all batches, with their number; not part of the balance."""
    tally: Mapping[str, Any] | None = None
    """The lines of this batch by file and format, as JSON of a Tally."""

    @property
    def watermark(self) -> datetime | None:
        us = self.watermark_us
        return None if us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.number,
            "accounts": accounts_json(self.accounts),
            "totals": accounts_json(self.totals),
            "newest": dict(self.newest),
            "watermark": self.watermark_us,
            "notes": dict(self.notes),
            "tally": self.tally,
        }


def done_of(said: Mapping[str, Any]) -> Done:
    """Return what :meth:`Done.to_json` wrote."""
    accounts, totals = accounts_of(said["accounts"]), accounts_of(said["totals"])
    return Done(
        said["batch"], accounts, totals, said["newest"], said["watermark"], said["notes"], said["tally"]
    )


class RunFiles:
    """The folders and accounts of a run, on any file system that Spark can write to."""

    def __init__(self, spark: SparkSession, output: str) -> None:
        self.spark = spark
        self.output = output
        # PySpark has no public way to Hadoop's file systems.
        self._jvm: Any = spark._jvm  # pyright: ignore[reportPrivateUsage]
        java: Any = spark._jsc  # pyright: ignore[reportPrivateUsage]
        self._files: Any = self._path("").getFileSystem(java.hadoopConfiguration())

    def last(self, before: int | None = None) -> Done | None:
        """Return the account of the last batch that is done (earlier than ``before``); None without one."""
        numbers = [one for one in self._numbers(_ACCOUNT) if before is None or one < before]
        return self.done(max(numbers)) if numbers else None

    def done(self, number: int) -> Done | None:
        """Return the account of a batch; None before the batch is done, and after its account was deleted."""
        path = self._account(number)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return done_of(json.loads(bytes(stream.readAllBytes()).decode()))
        finally:
            stream.close()

    def save(self, done: Done) -> None:
        """Write an account whole, and forget those that no batch needs any more."""
        temporary = self._path(f"{_ACCOUNT}/_batch.tmp")
        stream = self._files.create(temporary, True)
        try:
            stream.write(json.dumps(done.to_json()).encode())
            stream.hsync()
        finally:
            stream.close()
        self.forget(done.number)
        if not self._files.rename(temporary, self._account(done.number)):
            raise PipelineError(f"{self.output}: the account of batch {done.number} cannot be written")
        for number in self._numbers(_ACCOUNT):
            if number <= done.number - KEPT:
                self.forget(number)

    def forget(self, number: int) -> None:
        """Remove the account of a batch."""
        self._files.delete(self._account(number), False)

    def table(self, name: str, number: int) -> str:
        return f"{self.output}/{name}/batch={number:08d}"

    def remove(self, name: str, keep: Callable[[int], bool] = lambda _: False) -> None:
        """Remove the folders of a table whose batch is not to be kept."""
        for number in self._numbers(name):
            if not keep(number):
                self._files.delete(self._path(f"{name}/batch={number:08d}"), True)

    def open_rows(self, state: str, schema: str) -> DataFrame | None:
        """Return what the last batch has kept as ``state``; None if no batch is done."""
        last = self.last()
        return None if last is None else self.state(state, schema, last)

    def state(self, name: str, schema: str, after: Done) -> DataFrame:
        """Return what a batch has kept. Raises PipelineError if it is gone."""
        path = f"{_STATE}/{name}"
        if not self.has(f"{path}/batch={after.number:08d}"):
            raise PipelineError(
                f"{self.table(path, after.number)} is missing: the run cannot go on. Begin another one with "
                "--name NAME"
            )
        return self.spark.read.schema(schema).parquet(self.table(path, after.number))

    def write_open(self, table: str, rows: DataFrame) -> None:
        """Write rows that are still open to the folder ``batch=open`` of a table."""
        rows.coalesce(1).write.mode("overwrite").parquet(f"{self.output}/{table}/{OPEN_FOLDER}")

    def has(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def _account(self, number: int) -> Any:
        return self._path(f"{_ACCOUNT}/batch={number:08d}.json")

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.output}/{path}" if path else self.output)

    def _numbers(self, folder: str) -> list[int]:
        found: list[Any] = self._files.globStatus(self._path(f"{folder}/batch=[0-9]*")) or []
        names: list[str] = [one.getPath().getName() for one in found]
        return sorted(int(name.removeprefix("batch=").removesuffix(".json")) for name in names)


class Batch:
    """One batch while it is written. The pipeline's ``write`` says what became of its records."""

    def __init__(self, files: RunFiles, number: int, records: DataFrame) -> None:
        self.number = number
        self.spark = files.spark
        self.records = records
        """What ``start_batches`` was given, of this batch."""
        self.files = files
        self.before = files.last(before=number)
        self.accounts: dict[str, Account] = {}
        self.notes: dict[str, int] = dict(self.before.notes) if self.before is not None else {}
        self.tally: Mapping[str, Any] | None = None
        self.newest: dict[str, int] = dict(self.before.newest) if self.before is not None else {}
        self.watermark_us = self.before.watermark_us if self.before is not None else None
        self.is_committed = False
        """Whether the batch cannot be undone any more, since its rows are committed with its account."""
        self._is_done = False
        self._taken: dict[str, int] = {}
        self._kept: list[DataFrame] = []
        self._written: list[str] = []
        self._states: list[str] = []

    def account(self, name: str = "") -> Account:
        """Return the account of an input; ``""`` is a pipeline's only one."""
        if name not in self.accounts:
            before = self.before.totals.get(name) if self.before is not None else None
            self.accounts[name] = Account(open_before=before.open if before is not None else 0)
        return self.accounts[name]

    def persisted(self, frame: DataFrame) -> DataFrame:
        """Return the frame, kept in memory until the batch has been written."""
        self._kept.append(frame.persist())
        return frame

    def state(self, name: str, schema: str) -> DataFrame:
        """Return what the batch before has kept; an empty frame before the first batch."""
        if self.before is None:
            return self.spark.createDataFrame([], schema)
        return self.files.state(name, schema, self.before)

    def keep(self, name: str, frame: DataFrame) -> None:
        """Write what the next batch gets as ``state``."""
        self._states.append(f"{_STATE}/{name}")
        self.write(f"{_STATE}/{name}", frame)

    def write(self, table: str, frame: DataFrame) -> DataFrame:
        """Write the batch's rows of a table, in the place of those of an earlier attempt; return them."""
        self._written.append(table)
        path = self.files.table(table, self.number)
        frame.write.mode("overwrite").parquet(path)
        return self.spark.read.schema(frame.schema).parquet(path)

    def on_time(
        self,
        closes_us: Column,
        settings: EventSettings,
        dead_letters: Mapping[str, str],
        *,
        time: str = "at",
        inputs: Sequence[str] = ("",),
    ) -> DataFrame:
        """Return the events that are taken, with the column ``INPUT``, and move the watermark.

        What is rejected goes to the topic of dead letters, what is late to that of the settings if there is
        one, and both into the account; an event is late if the watermark has reached ``closes_us``.
        ``dead_letters`` are the sink's options.
        """
        fate, reason = F.col(f"{RECORD}.fate"), F.col(f"{RECORD}.reason")
        records = self.records if INPUT in self.records.columns else self.records.withColumn(INPUT, F.lit(""))
        if self.watermark_us is not None:
            is_late = fate.isNull() & (closes_us <= F.lit(self.watermark_us))
            fate = F.when(is_late, "late").otherwise(fate)
            reason = F.when(is_late, "after the result of its time was written").otherwise(reason)
        judged = records.withColumn("_fate", fate).withColumn("_reason", reason)
        counted = judged.groupBy(INPUT, "_fate", "_reason").agg(
            F.count("*").alias("records"), F.max(F.unix_micros(time)).alias("newest")
        )
        for name in inputs:
            self.account(name)
        rejected = 0
        late: dict[str, int] = {}
        for row in counted.collect():
            account = self.account(row[INPUT])
            account.read += row.records
            if row["_fate"] is None:
                self._taken[row[INPUT]] = row.records
                self.newest[row[INPUT]] = max(row.newest, self.newest.get(row[INPUT], row.newest))
            else:
                account.add(row["_fate"], row["_reason"], row.records)
                rejected += row.records * (row["_fate"] == "rejected")
                late[row[INPUT]] = late.get(row[INPUT], 0) + row.records * (row["_fate"] == "late")
        if rejected:
            send_letters(judged.where("_fate = 'rejected'"), dead_letters)
        for name, count in late.items():
            if count and settings.late_topic:
                topic = f"{settings.late_topic}-{name}" if name else settings.late_topic
                record = judged.where((F.col("_fate") == "late") & (F.col(INPUT) == name)).select(
                    *(F.col(f"{RECORD}.{one}").alias(one) for one in RAW)
                )
                send(record, {**dead_letters, "topic": topic}, f"late-{name}")
        self.move_watermark(inputs, settings.lateness)
        return judged.where("_fate is null").drop("_fate", "_reason")

    def without_repeats(self, events: DataFrame, known: DataFrame, key: str, name: str = "") -> DataFrame:
        """Return those of an input's events, after ``on_time``, whose key is new; of several the first."""
        place = Window.partitionBy(key).orderBy(*PLACE)
        first = events.where(F.col(INPUT) == name).withColumn("_number", F.row_number().over(place))
        first = first.where("_number = 1").drop("_number").join(known.select(key), key, "left_anti")
        first = self.persisted(first)
        repeated = self._taken.get(name, 0) - first.count()
        self.account(name).add("repeated", f"its {key} was read before", repeated)
        return first

    def move_watermark(self, inputs: Sequence[str], lateness: timedelta) -> None:
        """Move the watermark after the ``newest`` times of the inputs have changed."""
        if all(name in self.newest for name in inputs):
            reached = min(self.newest[name] for name in inputs) - microseconds(lateness)
            self.watermark_us = reached if self.watermark_us is None else max(self.watermark_us, reached)

    def is_over(self, closes_us: Column) -> Column:
        """Return whether the watermark has reached ``closes_us``, after ``on_time``."""
        return F.lit(False) if self.watermark_us is None else closes_us <= F.lit(self.watermark_us)

    def settle(
        self,
        rows: DataFrame,
        records: Column,
        reason: str | Column,
        *,
        left_out: Column | None = None,
        name: str = "",
    ) -> None:
        """Count the records of rows with the column ``is_over``.

        Those of rows that are over are in the results, or left out, with the reason; the others still open.
        """
        is_left_out = F.lit(False) if left_out is None else left_out
        why = F.lit(reason) if isinstance(reason, str) else reason
        counted = rows.groupBy("is_over", is_left_out.alias("left_out"), why.alias("reason"))
        for row in counted.agg(F.sum(records).alias("records")).collect():
            if row.is_over:
                self.account(name).add("left out" if row.left_out else "results", row.reason, row.records)
            else:
                self.account(name).open += row.records

    def was_done(self) -> bool:
        """Return whether an earlier attempt has written the account of this batch, which then stays."""
        self._is_done = self.files.done(self.number) is not None
        return self._is_done

    def finish(self) -> None:
        """Check the account and write it, unless it is written: now the batch is done. Raises Unbalanced."""
        if self._is_done:
            return
        self._is_done = True
        for name, account in self.accounts.items():
            account.check(name or "the input")
        before = self.before
        totals = joined_accounts(before.totals, self.accounts) if before is not None else self.accounts
        done = Done(
            self.number, self.accounts, totals, self.newest, self.watermark_us, self.notes, self.tally
        )
        self.files.save(done)
        for name in self._states:
            self.files.remove(name, keep=lambda number: number > self.number - KEPT)

    def undo(self) -> None:
        """Remove what a batch that failed has written, unless it is a part of a table already."""
        if self.is_committed:
            return
        self.files.forget(self.number)
        for table in self._written:
            self.files.remove(table, keep=lambda number: number != self.number)

    def release(self) -> None:
        for frame in reversed(self._kept):
            frame.unpersist()


def start_batches(
    name: str,
    records: DataFrame | Mapping[str, DataFrame],
    output: str,
    write: Callable[[Batch], None],
    *,
    available_now: bool,
    seconds: int,
    read_once: bool = False,
) -> StreamingQuery:
    """Start a query that writes each batch with ``write``: all that is there (``available_now``), or until it
    is stopped. Several inputs are given by name, and are told apart by the column ``INPUT``.

    The records of a batch are kept in memory until it has been written, unless ``write`` reads them once.
    """
    if isinstance(records, Mapping):
        inputs: Iterator[DataFrame] = (one.withColumn(INPUT, F.lit(key)) for key, one in records.items())
        frame = next(inputs)
        for one in inputs:
            frame = frame.unionByName(one, allowMissingColumns=True)
    else:
        frame = records
    files = RunFiles(frame.sparkSession, output)
    if files.has("checkpoint/state"):
        raise PipelineError(
            f"{output} was written by an earlier version, which kept what is open in Spark's state. Begin "
            "another run with --name NAME: it reads the topic again, and its account is whole"
        )

    def write_batch(batch_frame: DataFrame, number: int) -> None:
        batch = Batch(RunFiles(batch_frame.sparkSession, output), number, batch_frame)
        try:
            if not read_once:
                batch.persisted(batch.records)
            write(batch)
            batch.finish()
        except Exception:
            with suppress(Exception):  # the error of the batch is the one to be told
                batch.undo()
            raise
        finally:
            batch.release()

    job = (
        frame.writeStream.foreachBatch(write_batch)
        .queryName(name)
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


def microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def window_start_us(time: str, window: timedelta) -> Column:
    """Return the start of an event's window; windows begin at 1970 and follow one another."""
    at = F.unix_micros(time)
    return at - F.pmod(at, F.lit(microseconds(window)))


def window_text(start: str) -> Column:
    """Return the start of a window in ISO 8601, with a fraction only if it has one: ids have it."""
    is_whole = F.unix_micros(start) % 1_000_000 == 0
    with_fraction = F.date_format(start, "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    return F.when(is_whole, F.date_format(start, "yyyy-MM-dd'T'HH:mm:ssXXX")).otherwise(with_fraction)


def send(records: DataFrame, to_topic: Mapping[str, str], writer: str, *, once: bool = True) -> None:
    """Write records to a topic, from one task; once for readers of committed records, also if repeated."""
    options = {**to_topic, "writerId": writer, **({"exactlyOnce": "true"} if once else {})}
    records.coalesce(1).write.format("nilometer").options(**options).mode("append").save()


def send_letters(rejected: DataFrame, dead_letters: Mapping[str, str]) -> None:
    """Write records with the column ``_record`` to the topic of dead letters, with the reason."""
    columns = rejected.select(f"{RECORD}.*").drop("fate")
    send(mapped(columns.coalesce(1), _letters, RAW_TYPES), dead_letters, "dead-letters")


def _letters(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    from nilometer.pipeline.tables.staging import Rejected, dead_letter

    for one in rows_in(batches):
        yield dead_letter(Rejected(one, ": ".join(filter(None, (one["reason"], one["detail"])))))
