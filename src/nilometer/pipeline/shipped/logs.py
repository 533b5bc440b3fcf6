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

from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

LATENESS = timedelta(minutes=10)
"""How far the event-time watermark stays behind the newest time that was read."""

# Regular expressions as Java has them. Possessive quantifiers (*+) keep a hostile line from making the
# matcher recurse or try again; [0-9] and [^ ] say what is meant in every locale.
_PRIORITY = r"^(?:<([0-9]{1,3})>)?"
_PROGRAM = r"[^ ]++ ([^ :\[\]]++)(?:\[[0-9]++\])?: ?((?s:.*+))\z"
_TIME = r"([0-9]{4}-[0-9]{2}-[0-9]{2} {1,2}[0-9]{2}:[0-9]{2}:[0-9]{2})"
_ISO_TIME = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})?)"
_ACTION = r"(startup|install|upgrade|configure|trigproc|remove|purge|disappear|status|conffile)"
_APT_KEY = r"(Commandline|Requested-By|Install|Upgrade|Downgrade|Reinstall|Remove|Purge|Error|Comment)"
FORMATS = (
    # Kind, pattern, and which of its groups are time, label, name and message. What comes behind the size in
    # an access log is let pass: referer and agent, cut off or followed by other fields.
    (
        "access",
        r'^[^ ]++ [^ ]++ [^ ]++ \[([^\]]++)\] (?s:"([^"\\]*+(?:\\.[^"\\]*+)*+)")'
        r" ([0-9]{3}) (?:[0-9]++|-)(?: (?s:.*+))?\z",
        ("$1", "$3", "$2", ""),
    ),
    (
        "syslog",
        _PRIORITY + r"([A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8}) " + _PROGRAM,
        ("$2", "$1", "$3", "$4"),
    ),
    ("syslog-iso", _PRIORITY + _ISO_TIME + " " + _PROGRAM, ("$2", "$1", "$3", "$4")),
    ("dpkg", r"^" + _TIME + " " + _ACTION + r"(?: ((?s:.*+)))?\z", ("$1", "$2", "$3", "")),
    ("apt-date", r"^(Start-Date|End-Date): " + _TIME + r"\z", ("$2", "$1", "", "")),
    ("apt", r"^" + _APT_KEY + r": ([^ ]++)(?s:.*+)\z", ("", "$1", "$2", "")),
    ("alternatives", r"^update-alternatives " + _TIME + r": ([^ ]++)(?s:.*+)\z", ("$1", "$2", "", "")),
)
FORMAT_OF_KIND = {"syslog-iso": "syslog", "apt-date": "apt"}
WITHOUT_TIME = ("apt", "blank", "unparsed")

LEVELS = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
"""Syslog's severities, in the order of their numbers."""
LEVEL_WORD = (
    r"(?i)^[\[<(]?(emerg|panic|alert|crit|critical|fatal|err|error|warn|warning|notice|info|debug)[\]>):]"
)
OTHER_WORDS = {"panic": "emerg", "critical": "crit", "fatal": "crit", "error": "err", "warn": "warning"}
MARK = "\u0001"
EARLIEST = "1970-01-02"
"""A line that states a time before this does not fit its format: it is a broken one, or no time at all."""


# --- from a line to columns


def parse(records: DataFrame) -> DataFrame:
    """The columns of ``lines``, from records as either connector gives them."""
    text = F.make_valid_utf8(F.coalesce(F.col("value").cast("string"), F.lit("")))
    line, ingested = F.regexp_replace(text, r"\r\z", "").alias("line"), F.col("timestamp").alias("ingested")
    place = ("topic", "partition", "offset", "ingested")
    lines = records.select(*place[:3], ingested, line)
    # Three steps, one after another, so that each pattern and each time is worked out once per line.
    fitted = lines.withColumn("parts", _parts(F.col("line")))
    kind, time, label, name, message = (F.get("parts", F.lit(number)) for number in range(1, 6))
    blank = F.when(F.trim("line") == "", "blank").otherwise("unparsed")
    timed = fitted.select(
        *place,
        "line",
        F.coalesce(kind, blank).alias("kind"),
        _time(kind, time).alias("event_time"),
        _label(kind, label, message).alias("label"),
        _name(kind, name).alias("name"),
    )
    fits = F.col("kind").isin(*WITHOUT_TIME) | (F.col("event_time") >= F.lit(EARLIEST).cast("timestamp"))
    usual = F.col("kind")
    for other, format_name in FORMAT_OF_KIND.items():
        usual = F.when(F.col("kind") == other, format_name).otherwise(usual)

    def if_it_fits(part: str) -> Column:
        return F.when(fits, F.coalesce(F.col(part), F.lit(""))).otherwise("").alias(part)

    return timed.select(
        *place,
        F.when(fits, usual).otherwise("unparsed").alias("format"),
        F.when(fits, F.col("event_time")).alias("event_time"),
        if_it_fits("label"),
        if_it_fits("name"),
        "line",
    )


def _parts(line: Column) -> Column:
    """What the fitting pattern finds: nothing, kind, time, label, name, message. Without one: the line alone.

    Each pattern rewrites the line that it fits into its parts with marks between them. A line that has been
    rewritten begins with a mark, as no pattern does but the first; and the first comes first.
    """
    rewritten = F.translate(line, MARK, "\ufffd")
    for kind, pattern, groups in FORMATS:
        rewritten = F.regexp_replace(rewritten, pattern, MARK.join(("", kind, *groups)))
    return F.split(rewritten, MARK)


def _time(kind: Column, text: Column) -> Column:
    """Times that state no zone are in the session's (``spark.sql.session.timeZone``)."""
    local = F.try_to_timestamp(F.regexp_replace(text, " +", " "), F.lit("yyyy-MM-dd HH:mm:ss"))
    return (
        F.when(kind == "access", F.try_to_timestamp(text, F.lit("dd/MMM/yyyy:HH:mm:ss Z")))
        .when(kind == "syslog", _time_without_year(text))
        .when(kind == "syslog-iso", text.try_cast("timestamp"))
        .when(kind.isin("dpkg", "apt-date", "alternatives"), local)
    )


def _time_without_year(text: Column) -> Column:
    """RFC 3164 leaves out the year: it is the year of the record, or the one before for a day yet to come."""

    def in_year(year: Column) -> Column:
        dated = F.concat_ws(" ", year.cast("string"), F.regexp_replace(text, " +", " "))
        return F.try_to_timestamp(dated, F.lit("yyyy MMM d HH:mm:ss"))

    this_year, last_year = in_year(F.year("ingested")), in_year(F.year("ingested") - 1)
    tomorrow = F.col("ingested") + F.expr("INTERVAL 1 DAY")
    return F.when(this_year <= tomorrow, this_year).otherwise(last_year)


def _label(kind: Column, label: Column, message: Column) -> Column:
    """The HTTP status; the level; dpkg's or the alternatives' action; the key of apt's entry."""
    return (
        F.when(kind.isin("syslog", "syslog-iso"), _level(label, message))
        .when(kind.isin("apt", "apt-date"), F.lower(label))
        .otherwise(label)
    )


def _level(priority: Column, message: Column) -> Column:
    """The severity in the priority; else the level word that the message opens with; else "unstated"."""
    severity = F.element_at(F.array(*[F.lit(level) for level in LEVELS]), priority.try_cast("int") % 8 + 1)
    word = F.lower(F.regexp_extract(message, LEVEL_WORD, 1))
    level = F.when(word == "", "unstated")
    for other, usual in OTHER_WORDS.items():
        level = level.when(word == other, usual)
    return F.when(priority != "", severity).otherwise(level.otherwise(word))


def _name(kind: Column, name: Column) -> Column:
    """The path that was asked for; the program; the package."""
    path = F.regexp_extract(name, r"^[^ ]++ ([^ ?#]++)", 1)
    word = F.when(F.get("parts", F.lit(3)) == "status", F.split_part(name, F.lit(" "), F.lit(2))).otherwise(
        F.split_part(name, F.lit(" "), F.lit(1))
    )
    package = F.split_part(word, F.lit(":"), F.lit(1))
    return (
        F.when(kind == "access", F.when(path == "", name).otherwise(path))
        .when(kind == "dpkg", F.when(F.get("parts", F.lit(3)) == "startup", "dpkg").otherwise(package))
        .when(kind == "apt", F.when(F.get("parts", F.lit(3)) == "Commandline", name))
        .when(kind == "alternatives", "update-alternatives")
        .otherwise(name)
    )


# --- from lines to counts


def count(lines: DataFrame) -> DataFrame:
    """``counts`` of some lines: three groupings in one pass, distinguished by ``by``."""
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


def charts(spark: SparkSession, output: str) -> dict[str, DataFrame]:
    """Frames to plot, by title: the first column across, the others up."""
    counts = spark.read.parquet(f"{output}/counts")
    by_minute = counts.where("by = 'minute' AND minute IS NOT NULL")
    labels = counts.where("by = 'label' AND label != ''").select(
        F.concat_ws(" ", "format", "label").alias("status or level"), "lines"
    )
    return {
        "Lines per minute": by_minute.groupBy("minute").pivot("format").agg(F.sum("lines")).orderBy("minute"),
        "Lines by status or level": labels.groupBy("status or level")
        .agg(F.sum("lines").alias("lines"))
        .orderBy(F.col("lines").desc(), "status or level")
        .limit(20),
    }
