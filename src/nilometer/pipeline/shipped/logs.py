"""logs: log lines in a topic -> what each line says, and how many of each there are.

    nilometer pipeline run logs --topic logs --output ./logs-tables --available-now

Reads access logs (Common and Combined Log Format), syslog (RFC 3164 and ISO timestamps), and the logs of
dpkg, apt and update-alternatives, mixed as they come. A line that fits no format is kept as ``unparsed``,
so that the numbers add up to the number of records. Two tables come out, in Parquet:

- ``lines``: one row per record: format, event_time, label (HTTP status, syslog level, dpkg action, ...),
  name (path, program or package), the line itself and where it lies in the topic.
- ``counts``: how many lines per format and minute, per format and label, per format and name. Rows are
  parts, one set per batch; add up ``lines`` over them, as ``results`` does.

Exactly once. Spark's checkpoint gives every batch an id and fixes its offsets before the batch runs, so a
batch that is run again after a crash has the same records. Each batch writes one folder per table, named by
the id, and a repeated batch replaces that folder: however often it ran, its records are there once. (Spark's
file sink would do for ``lines`` but not for two tables at once; and counts by a streaming aggregation would
have to forget late lines before they could be written to Parquet, and so not add up.)

Two watermarks. The event-time watermark is this job's: ten minutes behind the newest time that a line has
stated, never going back; a minute before it is taken to be complete. Late lines are still counted, in their
own minute. It has nothing to do with a partition's high watermark, the offset below which records are
committed and so can be read at all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

LATENESS = timedelta(minutes=10)
"""How far the event-time watermark stays behind the newest time that was read."""

# Regular expressions as Java has them. Possessive quantifiers (*+) keep a hostile line from making the
# matcher recurse or try again; [0-9] and [^ ] say what is meant in every locale.
_QUOTED = r'(?s:"([^"\\]*+(?:\\.[^"\\]*+)*+)")'
ACCESS = r"^([^ ]++) [^ ]++ [^ ]++ \[([^\]]++)\] " + _QUOTED + r" ([0-9]{3}) (?:[0-9]++|-)(?: (?s:.*+))?\z"
"""What comes behind the size is let pass: referer and agent, cut off or followed by other fields."""
_PRIORITY = r"^(?:<([0-9]{1,3})>)?"
_PROGRAM = r"([^ :\[\]]++)(?:\[[0-9]++\])?: ?((?s:.*+))\z"
SYSLOG = _PRIORITY + r"([A-Z][a-z]{2}) {1,2}([0-9]{1,2}) ([0-9:]{8}) ([^ ]++) " + _PROGRAM
_ISO_TIME = (
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
)
SYSLOG_ISO = _PRIORITY + r"(" + _ISO_TIME + r") ([^ ]++) " + _PROGRAM
_TIME = r"([0-9]{4}-[0-9]{2}-[0-9]{2} {1,2}[0-9]{2}:[0-9]{2}:[0-9]{2})"
DPKG = (
    r"^" + _TIME + r" (startup|install|upgrade|configure|trigproc|remove|purge|disappear|status|conffile)"
    r"(?: ((?s:.*+)))?\z"
)
APT_DATE = r"^(Start-Date|End-Date): " + _TIME + r"\z"
APT = (
    r"^(Commandline|Requested-By|Install|Upgrade|Downgrade|Reinstall|Remove|Purge|Error|Comment): "
    r"([^ ]++)(?s:.*+)\z"
)
ALTERNATIVES = r"^update-alternatives " + _TIME + r": ([^ ]++)(?s:.*+)\z"

LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's severities, in the order of their numbers."""
LEVEL_WORD = (
    r"(?i)^[\[<(]?(emerg|panic|alert|crit|critical|fatal|err|error|warn|warning|notice|info|debug)[\]>):]"
)
OTHER_WORDS = {"panic": "emerg", "critical": "crit", "fatal": "crit", "error": "err", "warn": "warning"}


# --- from a line to columns


def parse(records: DataFrame) -> DataFrame:
    """The columns of ``lines``, from records as either connector gives them."""
    text = F.make_valid_utf8(F.coalesce(F.col("value").cast("string"), F.lit("")))
    line, ingested = F.regexp_replace(text, r"\r\z", "").alias("line"), F.col("timestamp").alias("ingested")
    lines = records.select("topic", "partition", "offset", ingested, line)
    formats: list[Callable[[Column], Column]] = [
        _access, _syslog, _syslog_iso, _dpkg, _apt_date, _apt, _alternatives, _blank,
    ]  # fmt: skip
    parsed = F.coalesce(*[fits(F.col("line")) for fits in formats], _fields("unparsed"))
    columns = ("topic", "partition", "offset", "ingested", "parsed.*", "line")
    return lines.withColumn("parsed", parsed).select(*columns)


def _fields(
    name_of_format: str, time: Column | None = None, label: Column | None = None, name: Column | None = None
) -> Column:
    """What every format is brought to. A line whose time is none does not fit the format."""
    fields = F.struct(
        F.lit(name_of_format).alias("format"),
        (F.lit(None) if time is None else time).cast("timestamp").alias("event_time"),
        (F.lit("") if label is None else label).alias("label"),
        (F.lit("") if name is None else name).alias("name"),
    )
    return fields if time is None else F.when(time >= F.lit("1970-01-02").cast("timestamp"), fields)


def _access(line: Column) -> Column:
    time = F.try_to_timestamp(F.regexp_extract(line, ACCESS, 2), F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    request = F.regexp_extract(line, ACCESS, 3)
    target = F.regexp_extract(request, r"^[^ ]++ ([^ ?#]++)", 1)
    path = F.when(target == "", request).otherwise(target)
    status = F.regexp_extract(line, ACCESS, 4)
    return F.when(line.rlike(ACCESS), _fields("access", time, status, path))


def _syslog(line: Column) -> Column:
    """RFC 3164 leaves out the year: it is the year of the record, or the one before for a day yet to come."""
    day_and_time = F.concat_ws(" ", *[F.regexp_extract(line, SYSLOG, group) for group in (2, 3, 4)])

    def in_year(year: Column) -> Column:
        return F.try_to_timestamp(
            F.concat_ws(" ", year.cast("string"), day_and_time), F.lit("yyyy MMM d HH:mm:ss")
        )

    this_year, last_year = in_year(F.year("ingested")), in_year(F.year("ingested") - 1)
    tomorrow = F.col("ingested") + F.expr("INTERVAL 1 DAY")
    time = F.when(this_year <= tomorrow, this_year).otherwise(last_year)
    program, message = F.regexp_extract(line, SYSLOG, 6), F.regexp_extract(line, SYSLOG, 7)
    level = _level(F.regexp_extract(line, SYSLOG, 1), message)
    return F.when(line.rlike(SYSLOG), _fields("syslog", time, level, program))


def _syslog_iso(line: Column) -> Column:
    time = F.regexp_extract(line, SYSLOG_ISO, 2).try_cast("timestamp")
    program, message = F.regexp_extract(line, SYSLOG_ISO, 4), F.regexp_extract(line, SYSLOG_ISO, 5)
    level = _level(F.regexp_extract(line, SYSLOG_ISO, 1), message)
    return F.when(line.rlike(SYSLOG_ISO), _fields("syslog", time, level, program))


def _level(priority: Column, message: Column) -> Column:
    """The severity in the priority; else the level word that the message opens with; else "unstated"."""
    severity = F.element_at(F.array(*[F.lit(level) for level in LEVELS]), priority.try_cast("int") % 8 + 1)
    word = F.lower(F.regexp_extract(message, LEVEL_WORD, 1))
    level = F.when(word == "", "unstated")
    for other, usual in OTHER_WORDS.items():
        level = level.when(word == other, usual)
    return F.when(priority != "", severity).otherwise(level.otherwise(word))


def _dpkg(line: Column) -> Column:
    time = _local_time(F.regexp_extract(line, DPKG, 1))
    action, rest = F.regexp_extract(line, DPKG, 2), F.regexp_extract(line, DPKG, 3)
    word = F.when(action == "status", F.split_part(rest, F.lit(" "), F.lit(2))).otherwise(
        F.split_part(rest, F.lit(" "), F.lit(1))
    )
    package = F.when(action == "startup", "dpkg").otherwise(F.split_part(word, F.lit(":"), F.lit(1)))
    return F.when(line.rlike(DPKG), _fields("dpkg", time, action, package))


def _apt_date(line: Column) -> Column:
    time = _local_time(F.regexp_extract(line, APT_DATE, 2))
    return F.when(line.rlike(APT_DATE), _fields("apt", time, F.lower(F.regexp_extract(line, APT_DATE, 1))))


def _apt(line: Column) -> Column:
    key = F.regexp_extract(line, APT, 1)
    program = F.when(key == "Commandline", F.regexp_extract(line, APT, 2)).otherwise("")
    return F.when(line.rlike(APT), _fields("apt", None, F.lower(key), program))


def _alternatives(line: Column) -> Column:
    time = _local_time(F.regexp_extract(line, ALTERNATIVES, 1))
    action = F.regexp_extract(line, ALTERNATIVES, 2)
    return F.when(
        line.rlike(ALTERNATIVES), _fields("alternatives", time, action, F.lit("update-alternatives"))
    )


def _blank(line: Column) -> Column:
    return F.when(F.trim(line) == "", _fields("blank"))


def _local_time(text: Column) -> Column:
    """A time without a zone: in the session's (``spark.sql.session.timeZone``)."""
    return F.try_to_timestamp(F.regexp_replace(text, " +", " "), F.lit("yyyy-MM-dd HH:mm:ss"))


# --- from lines to counts


def count(lines: DataFrame) -> DataFrame:
    """``counts`` of some lines: three groupings in one pass, told apart by ``by``."""
    minute = F.date_trunc("minute", "event_time").alias("minute")
    columns = lines.select("format", minute, "label", "name")
    grouped = columns.groupingSets(
        [[F.col("format"), F.col(key)] for key in ("minute", "label", "name")],
        F.col("format"), F.col("minute"), F.col("label"), F.col("name"),
    )  # fmt: skip
    by = F.when(F.grouping("minute") == 0, "minute").when(F.grouping("label") == 0, "label").otherwise("name")
    return grouped.agg(by.alias("by"), F.count("*").alias("lines")).select(
        "by", "format", "minute", "label", "name", "lines"
    )


# --- the streaming job


def start(
    records: DataFrame, output: str, *, available_now: bool = False, seconds: int = 5
) -> StreamingQuery:
    """Start the job: all there is and then stop, or every few seconds until stopped."""
    spark = records.sparkSession
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")  # 31/Feb is no date, and no error either
    lines = parse(records).withWatermark("event_time", f"{LATENESS.total_seconds():.0f} seconds")

    def write(batch: DataFrame, batch_id: int) -> None:
        # The counts are made from the lines as written: parsed once, and read back by columns.
        folder = f"batch={batch_id:08d}"
        batch.write.mode("overwrite").parquet(f"{output}/lines/{folder}")
        written = spark.read.schema(batch.schema).parquet(f"{output}/lines/{folder}")
        count(written).coalesce(1).write.mode("overwrite").parquet(f"{output}/counts/{folder}")

    job = (
        lines.writeStream.foreachBatch(write)
        .queryName("logs")
        .option("checkpointLocation", f"{output}/checkpoint")
    )
    every = f"{seconds} seconds"
    return (job.trigger(availableNow=True) if available_now else job.trigger(processingTime=every)).start()


# --- the results


def results(spark: SparkSession, output: str, top: int = 10) -> dict[str, DataFrame]:
    """Tables to look at, by title."""
    counts = spark.read.parquet(f"{output}/counts")

    def total(by: str, *columns: str) -> DataFrame:
        return counts.where(F.col("by") == by).groupBy("format", *columns).agg(F.sum("lines").alias("lines"))

    busiest = F.col("lines").desc()
    return {
        "Lines by format": total("label").orderBy(busiest, "format"),
        "Lines by status or level": total("label", "label").orderBy("format", busiest, "label"),
        f"Top {top} paths and programs": total("name", "name")
        .where(F.col("name") != "")
        .orderBy(busiest, "format", "name")
        .limit(top),
        f"Busiest {top} minutes": total("minute", "minute")
        .where(F.col("minute").isNotNull())
        .orderBy(busiest, "minute", "format")
        .limit(top),
    }
