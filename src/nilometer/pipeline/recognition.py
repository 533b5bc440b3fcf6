"""Formats in Spark: the records of a topic -> one row per line, and counts of lines by file and format.

``recognise`` applies the matcher of ``nilometer.pipeline.formats`` in Spark's Python workers, so that the
command line and the pipelines find the same. ``tally_in`` counts how many lines of a batch and of which file
are of which format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from nilometer.pipeline.formats.columns import as_text
from nilometer.pipeline.formats.definition import FormatDefinition, all_formats, formats_named
from nilometer.pipeline.formats.matcher import Matcher, text_of
from nilometer.pipeline.formats.tally import FILES_MAX, OTHER_FILES, SAMPLE_CHARS_MAX, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

PATH_HEADER: Final = "path"
"""The header in which `nilometer ingest` names a line's file."""
HEADERS: Final = {"includeHeaders": "true"}
"""The source's option that is needed to know the lines' files."""
LINE: Final = (
    "topic string, partition int, offset bigint, ingested timestamp, source string, format string, "
    "event_time timestamp, level string, label string, name string, fields map<string, string>, line string"
)
"""The columns of ``recognise``; ``source`` is the path of the file, empty if no header names it."""
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
RAW: Final = ("key", "value", "headers")
RAW_TYPES: Final = f"key binary, value binary, headers {HEADERS_TYPE}"
_SAMPLES: Final = 3
_SEPARATOR: Final = "\x01"
_TRACKED: Final = 8_192


@dataclass(frozen=True)
class Formats:
    """Which formats are tried: the user's files (pairs of name and TOML), then the built-in ones."""

    own: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    """Only these; without names, all."""

    def definitions(self) -> list[FormatDefinition]:
        """Return the formats that are tried, in that order. Raises FormatError."""
        return formats_named(all_formats(self.own), self.names)


@lru_cache(maxsize=8)
def matcher_of(formats: Formats, timezone: str) -> Matcher:
    """Return what matches lines with ``formats``, made once for each. Raises FormatError."""
    return Matcher(formats.definitions(), timezone)


def recognise(
    records: DataFrame, formats: Formats | None = None, *, files: bool | None = None, raw: bool = False
) -> DataFrame:
    """Return one row per record with the columns ``LINE``, read by either connector.

    ``raw`` adds the record's key, value and headers, as they were.

    ``files`` tells whether the records have headers, from which the lines' files are known. None looks at
    their columns, which the definitions of a declarative pipeline may not.

    A line of no format is ``unparsed``, an empty one ``blank``. Times without a zone are in the session's
    time zone. Raises FormatError if the formats are wrong.
    """
    from pyspark.sql import functions as F

    timezone = str(records.sparkSession.conf.get("spark.sql.session.timeZone"))
    formats = formats or Formats()
    matcher_of(formats, timezone)
    columns = [F.col(name) for name in ("topic", "partition", "offset", "timestamp")]
    columns += [source_of(records, files).alias("source"), F.col("value")]
    if not raw:
        return records.select(*columns).mapInArrow(_mapping(formats, timezone), LINE)
    columns += [F.col("key"), headers_of(records, files).alias("headers")]
    return records.select(*columns).mapInArrow(_mapping(formats, timezone, RAW), f"{LINE}, {RAW_TYPES}")


def source_of(records: DataFrame, files: bool | None = None) -> Column:
    """Return the column with the path of each record's file, empty if it is not known."""
    from pyspark.sql import functions as F

    if not (files if files is not None else "headers" in records.columns):
        return F.lit("")
    named = F.filter("headers", lambda one: one["key"] == PATH_HEADER)
    return F.coalesce(F.try_element_at(named, F.lit(1))["value"].cast("string"), F.lit(""))


def headers_of(records: DataFrame, files: bool | None = None) -> Column:
    """Return the column with the records' headers, empty if there are none.

    Never null: Spark's writer of Arrow data takes some microseconds for each of many lists that are null.
    """
    from pyspark.sql import functions as F

    none = F.array().cast(HEADERS_TYPE)
    has_headers = files if files is not None else "headers" in records.columns
    return F.coalesce("headers", none) if has_headers else none


def _mapping(
    formats: Formats, timezone: str, raw: Sequence[str] = ()
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(formats, timezone)
        for batch in batches:
            yield _recognised(matcher, batch, raw)

    return lines


def _recognised(matcher: Matcher, batch: pa.RecordBatch, raw: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    values: list[bytes | None] = batch.column("value").to_pylist()
    sources: list[str] = batch.column("source").to_pylist()
    recorded: list[int] = batch.column("timestamp").cast(pa.int64()).to_pylist()
    texts = [text_of(value or b"") for value in values]
    found = [matcher.match_text(*one) for one in zip(texts, sources, recorded, strict=True)]
    fields = [[(name, as_text(value)) for name, value in one.fields.items()] for one in found]
    text = pa.string()
    columns = {
        "topic": batch.column("topic"),
        "partition": batch.column("partition"),
        "offset": batch.column("offset"),
        "ingested": batch.column("timestamp"),
        "source": batch.column("source"),
        "format": pa.array([one.format for one in found], text),
        "event_time": pa.array([one.time_us for one in found], pa.timestamp("us", tz="UTC")),
        "level": pa.array([one.level for one in found], text),
        "label": pa.array([one.label for one in found], text),
        "name": pa.array([one.key for one in found], text),
        "fields": pa.array(fields, pa.map_(text, text)),
        "line": pa.array(texts, text),
        **{name: batch.column(name) for name in raw},
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def tally_in(lines: DataFrame) -> dict[str, Any]:
    """Return the counts of lines, whose columns include format, source and line, as JSON of a Tally."""
    return tally_of(lines.agg(*_counts()).collect()[0].asDict(recursive=True))


def _counts() -> list[Column]:
    from pyspark.sql import functions as F

    unparsed = F.col("format") == "unparsed"
    sample = F.struct("source", F.substring("line", 1, SAMPLE_CHARS_MAX + 1).alias("line"))
    kind = F.concat_ws(_SEPARATOR, "format", "source")
    kinds = F.call_function("approx_top_k", kind, F.lit(4 * FILES_MAX), F.lit(_TRACKED))

    def chosen(number: int) -> Column:
        """A line of no format: the one with the smallest hash, so that no order of rows matters."""
        return F.min_by(sample, F.when(unparsed, F.xxhash64("line", F.lit(number)))).alias(f"sample{number}")

    return [
        F.count("*").alias("lines"),
        F.count_if(unparsed).alias("unparsed"),
        F.count_if(F.col("format") == "blank").alias("blank"),
        kinds.alias("kinds"),
        *[chosen(number) for number in range(_SAMPLES)],
    ]


def tally_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the counts of a batch, as JSON of a Tally.

    Spark counts the pairs of file and format exactly up to about 6,000 of them; if a batch has more, its
    lines are counted without their files.
    """
    tally = Tally()
    kinds: list[Mapping[str, Any]] = row["kinds"] or []
    if sum(one["count"] for one in kinds) == row["lines"]:
        for one in kinds:
            form, _, source = one["item"].partition(_SEPARATOR)
            tally.add(source, form, one["count"])
    else:
        tally.add(OTHER_FILES, "unparsed", row["unparsed"])
        tally.add(OTHER_FILES, "blank", row["blank"])
        tally.add(OTHER_FILES, "(several formats)", row["lines"] - row["unparsed"] - row["blank"])
    for number in range(_SAMPLES):
        sample = row[f"sample{number}"]
        if sample is not None:
            tally.add_sample(sample["source"], sample["line"])
    return tally.to_json()
