"""`python -m bench.spark`: three sources read the same records into Spark; micro-batches; the audit.

One broker of Nilometer, one Spark session on all cores, sources in turns; every number is the median of the
rounds. Writes `results/spark.json` and `results/spark.md`. `--help` names the options.
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]
from rich.console import Console
from tests.support.apache_kafka import SPARK_JARS, ensure_java
from tests.support.nilometer_broker import NilometerBroker

from nilometer.pipeline.audit.audit import audit
from nilometer.pipeline.spark_session import build_session, connector_settings

from . import load, report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRATCH = Path(".nilometer") / "bench"
TOPIC = "records"
RECORD_BYTES = 100
BATCH_BYTES = 1_000_000
WARM_UP_RECORDS = 400_000
LOADS_OWN_RECORDS = 1_000
"""What the load generator sends ahead, to warm up."""
CHECKPOINT_WAIT_S = 60.0
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
console = Console()


@dataclass(frozen=True, slots=True)
class Place:
    """What is read, and where it lies."""

    bootstrap: str
    data_dir: Path
    topic: str


@dataclass(frozen=True, slots=True)
class Query:
    key: str
    title: str
    run: Callable[[DataFrame, Path], Any]
    narrow: str
    """The columns that the query needs, for the source that can be told."""


def _count(frame: DataFrame, _: Path) -> int:
    return frame.count()


def _sum(frame: DataFrame, _: Path) -> int:
    from pyspark.sql import functions as f

    return frame.agg(f.sum(f.length("value")).alias("bytes")).collect()[0].bytes


def _parquet(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder / "rows"))


QUERIES = (
    Query("count", "into `count()`", _count, "offset bigint"),
    Query("sum", "into a sum over the lengths of values", _sum, "value binary"),
    Query("parquet", "into Parquet, all columns", _parquet, COLUMNS),
)


def _brokers(connector: str) -> Callable[[SparkSession, Place, Query], DataFrame]:
    def frame(spark: SparkSession, place: Place, _: Query) -> DataFrame:
        options = {"kafka.bootstrap.servers": place.bootstrap, "subscribe": place.topic}
        return spark.read.format(connector).options(**options).load()

    return frame


def _folders(spark: SparkSession, place: Place, _: Query) -> DataFrame:
    reader = spark.read.format("nilometer-log").schema(COLUMNS).option("subscribe", place.topic)
    return reader.load(str(place.data_dir))


def _narrow(spark: SparkSession, place: Place, query: Query) -> DataFrame:
    reader = spark.read.format("nilometer-log").schema(query.narrow).option("subscribe", place.topic)
    return reader.load(str(place.data_dir))


SOURCES = {
    "kafka": _brokers("kafka"),
    "nilometer": _brokers("nilometer"),
    "nilometer-log": _folders,
    "nilometer-log, columns named": _narrow,
}
BASE = "kafka"


def _fill(broker: NilometerBroker, topic: str, records: int, partitions: int) -> None:
    """``records`` in all, and known to be committed."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})])[topic].result(30)
    load.run(
        "produce", broker.bootstrap, topic, records - LOADS_OWN_RECORDS, RECORD_BYTES, BATCH_BYTES, "all"
    )
    checkpoint = broker.data_dir / "replication-offset-checkpoint"
    deadline = time.monotonic() + CHECKPOINT_WAIT_S
    while _checkpointed(checkpoint, topic) < records:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the broker checkpointed {_checkpointed(checkpoint, topic)} of {records} records"
            )
        time.sleep(0.1)


def _checkpointed(path: Path, topic: str) -> int:
    lines = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return sum(int(offset) for name, _, offset in lines if name == topic)


def _read_rates(spark: SparkSession, place: Place, records: int, folder: Path) -> Iterator[tuple[str, float]]:
    """Records per second by `query/source`."""
    for query in QUERIES:
        for name, frame in SOURCES.items():
            if query.narrow == COLUMNS and frame is _narrow:
                continue  # all columns are needed
            began = time.monotonic()
            result = query.run(frame(spark, place, query), folder)
            seconds = time.monotonic() - began
            expected = {"count": records, "sum": records * RECORD_BYTES}.get(query.key)
            if expected is not None and result != expected:
                raise RuntimeError(f"{query.key} through {name} is {result}, not {expected}")
            yield f"{query.key}/{name}", records / seconds


def _batch_floor(spark: SparkSession, place: Place, connector: str, folder: Path, batches: int) -> float:
    """Median milliseconds of a micro-batch of one record, as Spark itself counts them."""
    options = {"kafka.bootstrap.servers": place.bootstrap, "subscribe": place.topic}
    frame = spark.readStream.format(connector).options(**options, startingOffsets="latest").load()
    checkpoint = folder / f"checkpoint-{uuid.uuid4().hex[:6]}"
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    producer = Producer({"bootstrap.servers": place.bootstrap, "linger.ms": 0})
    durations: list[float] = []
    try:
        query.processAllAvailable()
        for number in range(batches + 5):
            producer.produce(place.topic, b"one record", partition=0)
            producer.flush(10)
            query.processAllAvailable()
            worked = [one for one in query.recentProgress if one["numInputRows"]]
            if number >= 5 and worked:
                durations.append(float(worked[-1]["durationMs"]["triggerExecution"]))
    finally:
        query.stop()
    return statistics.median(durations)


def _audit_rates(spark: SparkSession, place: Place, folder: Path) -> Iterator[tuple[str, float]]:
    """GB/s over one replica, and over two that are compared as well."""
    twin = folder / "twin"
    shutil.copytree(place.data_dir, twin, ignore=shutil.ignore_patterns(".lock"))
    try:
        for key, places in (("one", [place.data_dir]), ("two", [place.data_dir, twin])):
            result = audit(spark, [str(one) for one in places])
            if result.wrong:
                raise RuntimeError(f"the audit found {result.wrong[0]}")
            yield f"audit/{key}", result.bytes / 1e9 / result.seconds
    finally:
        shutil.rmtree(twin)


@contextmanager
def _scratch() -> Iterator[Path]:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@click.command()
@click.option("--records", type=click.IntRange(10_000), default=10_000_000, show_default=True)
@click.option("--partitions", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--batches", type=click.IntRange(5), default=40, show_default=True, help="Micro-batches timed.")
@click.option("--dry", is_flag=True, help="Show the numbers, write nothing.")
def main(records: int, partitions: int, rounds: int, batches: int, dry: bool) -> None:
    """Sources of Spark beside each other: records/s, the floor of a micro-batch, GB/s of the audit."""
    ensure_java()
    load.compile_load()
    samples: dict[str, list[float]] = {}

    def note(key: str, number: float) -> None:
        samples.setdefault(key, []).append(number)
        console.print(f"  {key}: {number:,.2f}" if number < 1000 else f"  {key}: {number:,.0f}")

    with _scratch() as folder, NilometerBroker(folder / "data") as broker:
        place = Place(broker.bootstrap, broker.data_dir, TOPIC)
        console.print(f"filling {records:,} records of {RECORD_BYTES} B")
        _fill(broker, "warm-up", WARM_UP_RECORDS, partitions)
        _fill(broker, TOPIC, records, partitions)
        settings = connector_settings(str(SPARK_JARS))
        spark = build_session("bench", settings=settings, log_file=folder / "spark.log")
        try:
            warm = Place(broker.bootstrap, broker.data_dir, "warm-up")
            for _ in _read_rates(spark, warm, WARM_UP_RECORDS, folder):
                pass
            for number in range(rounds):
                console.print(f"[bold]round {number + 1} of {rounds}")
                for key, rate in _read_rates(spark, place, records, folder):
                    note(key, rate)
                for connector in ("kafka", "nilometer"):
                    warm_floor = _batch_floor(spark, warm, connector, folder, batches)
                    note(f"floor/{connector}", warm_floor)
                for key, rate in _audit_rates(spark, place, folder):
                    note(key, rate)
        finally:
            spark.stop()
    lines = table_lines(samples)
    console.print("\n".join(lines), markup=False)
    if not dry:
        console.print(f"written: {_write(samples, lines, records, rounds).relative_to(Path.cwd())}")


_HEAD = """# Reading topics into Spark

{records:,} records of {bytes} B from one broker of Nilometer, uncompressed, one Spark session on all cores,
sources in turns. The ratio says how many times better a source is than Spark's own `kafka` connector.
`nilometer-log` reads the broker's folder; with its columns named by a schema only those are made. A
micro-batch's time is Spark's own `triggerExecution`.
"""


def table_lines(samples: dict[str, list[float]]) -> list[str]:
    lines = ["| | source | median (lowest … highest) | beside Spark's connector |", "|---|---|---|---|"]
    for query in QUERIES:
        for name in SOURCES:
            lines += _line(
                samples,
                f"read {query.title}",
                f"{query.key}/{name}",
                name,
                f"{query.key}/{BASE}",
                "records/s",
                True,
            )
    for name in ("kafka", "nilometer"):
        lines += _line(
            samples, "a micro-batch of one record", f"floor/{name}", name, f"floor/{BASE}", "ms", False
        )
    for key, title in (("one", "audit of one replica"), ("two", "audit of two replicas, compared")):
        lines += _line(samples, title, f"audit/{key}", "", "", "GB/s", True)
    return lines


def _line(
    samples: dict[str, list[float]],
    title: str,
    key: str,
    name: str,
    base: str,
    unit: str,
    more_is_better: bool,
) -> list[str]:
    numbers = samples.get(key)
    if not numbers:
        return []
    median = statistics.median(numbers)
    form = ",.0f" if median >= 100 else ".2f"
    shown = f"**{median:{form}}** {unit} ({min(numbers):{form}} … {max(numbers):{form}})"
    ratio = ""
    if base in samples and base != key:
        other = statistics.median(samples[base])
        ratio = f"{median / other if more_is_better else other / median:.2f} ×"
    return [f"| {title} | {name} | {shown} | {ratio} |"]


def _write(samples: dict[str, list[float]], lines: list[str], records: int, rounds: int) -> Path:
    import pyspark

    command = shlex.join(["python", "-m", "bench.spark", *sys.argv[1:]])
    facts = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "rounds": rounds,
        "records": records,
        "machine": report.machine(),
        "versions": {"pyspark": pyspark.__version__},
    }
    report.RESULTS.mkdir(exist_ok=True)
    (report.RESULTS / "spark.json").write_text(json.dumps({**facts, "samples": samples}, indent=1) + "\n")
    machine = ", ".join(f"{key} {value}" for key, value in facts["machine"].items())
    page = report.RESULTS / "spark.md"
    head = _HEAD.format(records=records, bytes=RECORD_BYTES)
    foot = f"{facts['date']}, {rounds} rounds: `{command}`. pyspark {pyspark.__version__}; {machine}."
    page.write_text("\n".join([head, *lines, "", foot, ""]))
    return page


if __name__ == "__main__":
    main()
