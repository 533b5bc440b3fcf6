"""Records as events with typed columns, or the reason why a record is none: the door of the pipelines.

``typed`` decodes JSON objects with the decoder of the tables, which changes no value to fit, and lines of the
user's own formats. What is no event is told from what is one before any window or join sees it: the column
``_record`` says so, and has the record as it was, for the topic of dead letters. Most records are events, for
which it is null: a batch is kept in memory, and its records would be most of that.

An event's time is bounded: one that is further ahead of its record's time stamp than ``ahead`` would end
windows that are not over, and is rejected. It depends on the record alone, so that a repeated batch rejects
the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nilometer.pipeline.errors import RejectedValue, in_record
from nilometer.pipeline.formats.columns import CONVERSIONS, as_text
from nilometer.pipeline.formats.definition import parse_formats
from nilometer.pipeline.formats.matcher import BLANK, HEADER_LABEL, UNPARSED, Matcher
from nilometer.pipeline.recognition import HEADERS_TYPE, RAW, Formats, headers_of, matcher_of, source_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PLACE: Final = ("_partition", "_offset")
"""The columns with the place of a record."""
RECORD: Final = "_record"
"""The column that says what a record is that is no event; null if it is one, unless late ones are sent on."""
RECORD_TYPE: Final = (
    f"{RECORD} struct<topic:string,partition:int,offset:bigint,fate:string,reason:string,detail:string,"
    f"key:binary,value:binary,headers:{HEADERS_TYPE}>"
)
BLANK_REASON: Final = "no value, or an empty one"
NO_FORMAT: Final = "of no format"
NUMBER_MAX: Final = 1e290
"""Events whose numbers are larger are rejected: the sum of many such may be infinite."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Decode = Callable[[bytes, str, int], dict[str, Any]]
"""Returns an event from a value, the path of its file and the record's time stamp in microseconds; nothing
for a line with the names of columns. Raises RejectedValue."""


@dataclass(frozen=True)
class EventSettings:
    """The settings of each pipeline that orders events by their time."""

    lateness: timedelta = timedelta(0)
    """The distance from the newest event time to the watermark."""
    ahead: timedelta = timedelta(hours=1)
    """An event whose time is further ahead of its record's time stamp is rejected. Brokers bound the time
    stamps by their clock."""
    late_topic: str = ""
    """The topic that late records are written to, as they were; empty: they are only counted. Of a pipeline
    with several inputs it is the beginning of a topic's name for each, such as ``late-orders``."""


def typed(
    records: DataFrame,
    schema: str,
    settings: EventSettings,
    *,
    time: str = "at",
    needed: Sequence[str] | None = None,
    formats: Formats | None = None,
    check: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
    files: bool | None = None,
) -> DataFrame:
    """Return a row per record with the columns of ``schema``, ``PLACE`` and ``_record``.

    ``schema`` has simple types. All ``needed`` columns (by default all) must have a value, and ``time`` is
    the event's. With formats of the user's own, values are lines of these, whose columns have the names of
    the schema; a time that no column names is the line's.
    ``check`` returns why an event is rejected, None if it is not. ``files`` is that of ``recognise``.
    """
    from pyspark.sql import functions as F

    timezone = str(records.sparkSession.conf.get("spark.sql.session.timeZone"))
    given = records.select(
        "topic",
        "partition",
        "offset",
        F.unix_micros("timestamp").alias("recorded"),
        (source_of(records, files) if formats is not None and formats.own else F.lit("")).alias("source"),
        "key",
        "value",
        headers_of(records, files).alias("headers"),
    )
    task = typing_task(
        schema, settings, time=time, needed=needed, formats=formats, check=check, timezone=timezone
    )
    return given.mapInArrow(task, f"{schema}, _partition int, _offset bigint, {RECORD_TYPE}")


def taken(lines: DataFrame) -> DataFrame:
    """Return the lines of :func:`typed` that are taken as events, with the columns of the schema only."""
    return lines.where(f"{RECORD}.fate is null").drop(RECORD, *PLACE)


def record_of(fate: Column, reason: Column, settings: EventSettings) -> Column:
    """Return the column ``_record`` of a frame that has the record's own columns; null fate: it is taken."""
    from pyspark.sql import functions as F

    said = [fate.alias("fate"), reason.alias("reason"), F.lit(None).cast("string").alias("detail")]
    record = F.struct("topic", "partition", "offset", *said, *RAW)
    return (record if settings.late_topic else F.when(fate.isNotNull(), record)).alias(RECORD)


def typing_task(
    schema: str,
    settings: EventSettings,
    *,
    time: str = "at",
    needed: Sequence[str] | None = None,
    formats: Formats | None = None,
    check: Callable[[Mapping[str, Any]], str | None] = lambda _: None,
    timezone: str = "UTC",
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark's tasks run for :func:`typed`, which has the same parameters: it makes
    rows of batches of records. Raises FormatError."""
    types = _types_of(schema)
    required = tuple(needed if needed is not None else types)
    numbers = tuple(name for name, kind in types.items() if kind == "double")
    no_stamp, too_far = _ahead_texts(time, settings.ahead)
    ahead_us = settings.ahead // _MICROSECOND
    own = _only_own(formats) if formats is not None and formats.own else None
    if own is not None:
        matcher_of(own, timezone)  # it may be refused

    def events(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if own is None:
            decode = _json_events(types, required)
        else:
            decode = _line_events(matcher_of(own, timezone), types, required)

        def judged(value: bytes | None, source: str, recorded: int) -> Judged:
            """Return an event, or none with its fate, the reason and the detail."""
            if not value or value.isspace():
                return {}, "left out", BLANK_REASON, None
            try:
                row = decode(value, source, recorded)
                if not row:
                    return {}, "left out", "a line with the names of columns", None
                if recorded < 0:
                    raise RejectedValue(no_stamp)
                if (row[time] - _EPOCH) // _MICROSECOND - recorded > ahead_us:
                    raise RejectedValue(too_far, row[time].isoformat())
                for name in numbers:
                    if not -NUMBER_MAX <= (row[name] or 0.0) <= NUMBER_MAX:
                        raise RejectedValue(f"its {name} is too large to be summed", repr(row[name]))
                if (why := check(row)) is not None:
                    raise RejectedValue(why)
            except RejectedValue as error:
                return {}, "rejected", error.reason, error.detail or None
            return row, None, None, None

        for batch in batches:
            given = (batch.column(one).to_pylist() for one in ("value", "source", "recorded"))
            found: list[Judged] = []
            try:
                found.extend(map(judged, *given))
            except Exception:
                with in_record(batch.slice(len(found), 1).to_pylist()[0]):
                    raise
            yield _event_columns(batch, types, found, keep_taken=bool(settings.late_topic))

    return events


Judged = tuple[dict[str, Any], str | None, str | None, str | None]
"""An event, or none with its fate, the reason and the detail."""


def _event_columns(
    batch: pa.RecordBatch, types: Mapping[str, str], found: Sequence[Judged], *, keep_taken: bool
) -> pa.RecordBatch:
    """Return the columns of events, and of their records, if they are not taken or kept."""
    import pyarrow as pa

    kinds = {"timestamp": pa.timestamp("us", "UTC"), "double": pa.float64(), "string": pa.string()}
    rows = [row for row, *_ in found]
    columns: dict[str, pa.Array] = {
        name: pa.array([row.get(name) for row in rows], kinds[kind]) for name, kind in types.items()
    }
    for name in PLACE:
        columns[name] = batch.column(name.removeprefix("_"))
    record: dict[str, Any] = {name: batch.column(name) for name in ("topic", "partition", "offset")}
    for number, name in enumerate(("fate", "reason", "detail"), 1):
        record[name] = pa.array([one[number] for one in found], pa.string())
    record |= {name: batch.column(name) for name in RAW}
    fields = [pa.field(name, column.type) for name, column in record.items()]
    struct: Any = pa.StructArray  # whose types in Python lack ``mask``
    is_none = None if keep_taken else record["fate"].is_null()
    columns[RECORD] = struct.from_arrays(list(record.values()), fields=fields, mask=is_none)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def ahead_reason(time: str, recorded: str, ahead: timedelta) -> Column:
    """Return why an event's time is rejected beside its record's time stamp; null if it is not."""
    from pyspark.sql import functions as F

    distance = F.unix_micros(time) - F.unix_micros(recorded)
    no_stamp, too_far = _ahead_texts(time, ahead)
    return F.when(F.unix_micros(recorded) < 0, no_stamp).when(distance > ahead // _MICROSECOND, too_far)


def _ahead_texts(time: str, ahead: timedelta) -> tuple[str, str]:
    return (
        f"the record has no time stamp, by which its {time} could be bounded",
        f"its {time} is more than {ahead} ahead of the record's time stamp (setting ahead)",
    )


def _json_events(types: Mapping[str, str], needed: tuple[str, ...]) -> Decode:
    from nilometer.pipeline.tables.values import Field, json_decoder, struct

    kinds = {name: _value_type(kind) for name, kind in types.items()}
    decode = json_decoder(struct(*(Field(name, kind, name in needed) for name, kind in kinds.items()))).decode
    return lambda value, source, recorded: decode(value)


def _line_events(matcher: Matcher, types: Mapping[str, str], needed: tuple[str, ...]) -> Decode:
    from nilometer.pipeline.formats.matcher import text_of

    def decode(value: bytes, source: str, recorded: int) -> dict[str, Any]:
        text = text_of(value)
        line = matcher.match_text(text, source, recorded)
        if line in (UNPARSED, BLANK):
            raise RejectedValue(NO_FORMAT, text[:200])
        if line.label == HEADER_LABEL and not line.fields:
            return {}
        row: dict[str, Any] = {}
        for name, kind in types.items():
            given = line.fields.get(name)
            if kind == "timestamp":
                row[name] = None if line.time_us is None else _EPOCH + line.time_us * _MICROSECOND
            elif given is None or (given == "" and kind != "string"):
                row[name] = None
            else:
                row[name] = as_text(given) if kind == "string" else CONVERSIONS["number"](given)
                if row[name] is None:
                    raise RejectedValue(f"column {name} of format {line.format} is no number", str(given))
            if row[name] is None and name in needed:
                raise RejectedValue(f"format {line.format}: the line has no {name}", text[:200])
        return row

    return decode


def _value_type(kind: str) -> Any:
    from nilometer.pipeline.tables.values import Kind, ValueType

    kinds: dict[str, Kind] = {"timestamp": "timestamp", "double": "float64", "string": "string"}
    return ValueType(kinds[kind])


def _only_own(formats: Formats) -> Formats:
    names = [one.name for source, text in formats.own for one in parse_formats(text, source)]
    return Formats(formats.own, formats.names or tuple(dict.fromkeys(names)))


def _types_of(schema: str) -> dict[str, str]:
    """Return the type of each column of a schema such as ``at timestamp, value double``."""
    pairs = [part.split() for part in schema.split(",")]
    return {name.strip("`"): kind for name, kind in pairs}
