"""logs: log lines in a topic -> the parsed lines, and counts of them.

    nilometer pipeline run logs --topic logs --output ./logs-tables --available-now

Reads access logs (Common and Combined Log Format), syslog (RFC 3164 and ISO timestamps), and the logs of
dpkg, apt and update-alternatives, in any mixture. A line that fits no format is kept as ``unparsed``, so that
the numbers add up to the number of records. Writes two tables, in Parquet:

- ``lines``: one row per record: format, event_time, label (HTTP status, syslog level, dpkg action, ...),
  name (path, program or package), the line itself, and its topic, partition and offset.
- ``counts``: the number of lines per format and minute, per format and label, per format and name. Each batch
  writes its own counts; the totals are the sums of ``lines`` over all batches, as in ``results``.

Exactly once. Spark's checkpoint gives every batch an id and fixes its offsets before the batch runs, so a
batch that is run again after a crash has the same records. Each batch writes one folder per table, named by
the id, and a repeated batch replaces that folder: however often it ran, its records are there once. (Spark's
file sink would be enough for ``lines`` but not for two tables at once; and counts by a streaming aggregation
would have to drop late lines before they could be written to Parquet, and so would not add up.)

Two watermarks. The event-time watermark is this job's: ten minutes before the newest time in a line, never
decreasing; a minute before it counts as complete. Late lines are still counted, in their own minute. It has
nothing to do with a partition's high watermark, the offset below which records are committed and so can be
read at all.
"""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

LATENESS = timedelta(minutes=10)
"""The distance from the newest event time read to the watermark."""

# Java's regular expressions. Possessive quantifiers (*+) keep a malicious line from causing recursion or
# backtracking; [0-9] and [^ ] have the same meaning in every locale.
_PRIORITY = r"^(?:<([0-9]{1,3})>)?"
_PROGRAM = r"[^ ]++ ([^ :\[\]]++)(?:\[[0-9]++\])?: ?((?s:.*+))\z"
_TIME = r"([0-9]{4}-[0-9]{2}-[0-9]{2} {1,2}[0-9]{2}:[0-9]{2}:[0-9]{2})"
_ISO_TIME = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})?)"
_ACTION = r"(startup|install|upgrade|configure|trigproc|remove|purge|disappear|status|conffile)"
_APT_KEY = r"(Commandline|Requested-By|Install|Upgrade|Downgrade|Reinstall|Remove|Purge|Error|Comment)"
FORMATS = (
    # Kind, pattern, and which of its groups are time, label, name and message. Anything after the size in an
    # access log is accepted: referer and agent, cut off or followed by other fields.
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
"""A line with a time before this does not fit its format: its time was misread."""


# --- from a line to columns


def parse(records: DataFrame) -> DataFrame:
    """Return the table ``lines`` of some records, read by either connector."""
    text = F.make_valid_utf8(F.coalesce(F.col("value").cast("string"), F.lit("")))
    line, ingested = F.regexp_replace(text, r"\r\z", "").alias("line"), F.col("timestamp").alias("ingested")
    place = ("topic", "partition", "offset", "ingested")
    lines = records.select(*place[:3], ingested, line)
    # Three steps, one after another, so that each pattern and each time is evaluated once per line.
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
    """Return an array: empty, kind, time, label, name, message; only the line if no pattern fits.

    Each pattern rewrites a line that it fits into these parts, separated by ``MARK``. A rewritten line begins
    with the mark, which no pattern matches at the beginning but the first, and that one is applied first.
    """
    rewritten = F.translate(line, MARK, "\ufffd")
    for kind, pattern, groups in FORMATS:
        rewritten = F.regexp_replace(rewritten, pattern, MARK.join(("", kind, *groups)))
    return F.split(rewritten, MARK)


def _time(kind: Column, text: Column) -> Column:
    """Parse the time; without a time zone it is in the session's (``spark.sql.session.timeZone``)."""
    local = F.try_to_timestamp(F.regexp_replace(text, " +", " "), F.lit("yyyy-MM-dd HH:mm:ss"))
    return (
        F.when(kind == "access", F.try_to_timestamp(text, F.lit("dd/MMM/yyyy:HH:mm:ss Z")))
        .when(kind == "syslog", _time_without_year(text))
        .when(kind == "syslog-iso", text.try_cast("timestamp"))
        .when(kind.isin("dpkg", "apt-date", "alternatives"), local)
    )


def _time_without_year(text: Column) -> Column:
    """Parse a time of RFC 3164, which has no year.

    It gets the year of the record's timestamp, or the year before if the time would otherwise be more than a
    day later than that timestamp.
    """

    def in_year(year: Column) -> Column:
        dated = F.concat_ws(" ", year.cast("string"), F.regexp_replace(text, " +", " "))
        return F.try_to_timestamp(dated, F.lit("yyyy MMM d HH:mm:ss"))

    this_year, last_year = in_year(F.year("ingested")), in_year(F.year("ingested") - 1)
    tomorrow = F.col("ingested") + F.expr("INTERVAL 1 DAY")
    return F.when(this_year <= tomorrow, this_year).otherwise(last_year)


def _label(kind: Column, label: Column, message: Column) -> Column:
    """Return the label: HTTP status, syslog level, action of dpkg or alternatives, key of apt's entry."""
    return (
        F.when(kind.isin("syslog", "syslog-iso"), _level(label, message))
        .when(kind.isin("apt", "apt-date"), F.lower(label))
        .otherwise(label)
    )


def _level(priority: Column, message: Column) -> Column:
    """Return the severity of the priority, else the message's first word if a level, else "unstated"."""
    severity = F.element_at(F.array(*[F.lit(level) for level in LEVELS]), priority.try_cast("int") % 8 + 1)
    word = F.lower(F.regexp_extract(message, LEVEL_WORD, 1))
    level = F.when(word == "", "unstated")
    for other, usual in OTHER_WORDS.items():
        level = level.when(word == other, usual)
    return F.when(priority != "", severity).otherwise(level.otherwise(word))


def _name(kind: Column, name: Column) -> Column:
    """Return the name: the requested path, the program, or the package."""
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
    """Return the table ``counts`` of some lines: three groupings in one pass, named by column ``by``."""
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
    """Start the job: read everything and stop (``available_now``), or run every few seconds until stopped."""
    spark = records.sparkSession
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")  # 31/Feb becomes null, not an error
    lines = parse(records).withWatermark("event_time", f"{LATENESS.total_seconds():.0f} seconds")

    def write(batch: DataFrame, batch_id: int) -> None:
        # Count the lines as written, so that they are parsed only once.
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
    """Return the result tables by title; ``top`` is the number of rows of the ranked ones."""
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
    """Return the plots by title: the first column is the x axis, the others are the y values."""
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
