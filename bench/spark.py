"""The rows of Spark: sources beside each other on the same records, micro-batches, the audit.

One broker of Nilometer and one Spark session on all cores. A row's columns are the sources, in the order in
which they take their turns; each is held against Spark's own connector, which reads the same topic.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from tests.support.brokers.nilometer_broker import NilometerBroker
from tests.support.kafka.apache_kafka import SPARK_JARS

from nilometer.pipeline.audit.audit import audit
from nilometer.pipeline.decode.column_decoder import KAFKA_COLUMNS
from nilometer.pipeline.export.topic_export import Compression, export_topics
from nilometer.pipeline.spark.spark_session import build_session, connector_settings

from . import load
from .rows import Column, Numbers, Row
from .systems import System, create_topic, remove

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "records"
PARTITIONS = 4
RECORDS = 10_000_000
RECORD_BYTES = 100
BATCH_BYTES = 1_000_000
WARM_TOPIC = "warm-up"
TIERED_TOPIC = "tiered"
TIERED = {"remote.storage.enable": "true", "segment.bytes": str(64 << 20), "local.retention.bytes": "1"}
TIER_AT_ONCE = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}
TIERED_WAIT_S = 300.0
TIMES = 3
WARM_UP_RECORDS = 400_000
CHECKPOINT_WAIT_S = 60.0
MICRO_BATCHES = 40
MICRO_BATCHES_AHEAD = 5
"""So many come first, untimed."""
WHOLE_BATCH = "triggerExecution"
BASE = "kafka"
EXPORT = "nilometer export"
SPARK_COMPRESSION: Compression = "snappy"
"""The codec of Parquet files that Spark writes, unless it is told another one."""
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)


class SparkOnNilometer:
    """A broker with the records in it, and a Spark session beside it."""

    name = "Nilometer"

    def __init__(self, folder: Path, records: int = RECORDS) -> None:
        self.folder = folder
        self.records = records
        self.tier = folder / "tier"
        self.tier.mkdir()
        remote = {"remote.log.storage.system.enable": "true", "nilometer.tier.uri": self.tier.as_uri()}
        self._broker = NilometerBroker(folder / "data", {**remote, **TIER_AT_ONCE})
        self.bootstrap = self._broker.bootstrap
        self.data_dir = self._broker.data_dir
        self._spark: SparkSession | None = None

    @staticmethod
    def version() -> str:
        return importlib.metadata.version("pyspark")

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            raise RuntimeError("Spark is not running")
        return self._spark

    def launch(self) -> None:
        self._broker.launch()

    def fill(self) -> None:
        """Wait for the broker, and send it the records."""
        self._broker.wait_ready()
        for topic, records in ((WARM_TOPIC, WARM_UP_RECORDS), (TOPIC, self.records)):
            create_topic(self, topic, PARTITIONS)
            _fill(self, topic, records)

    def wait_ready(self) -> None:
        self.fill()
        settings = connector_settings(str(SPARK_JARS))
        self._spark = build_session("bench", settings=settings, log_file=self.folder / "spark.log")

    def stop(self) -> None:
        if self._spark is not None:
            self._spark.stop()
        self._broker.stop()

    def pids(self) -> list[int]:
        return [self._broker.pid]


@dataclass(frozen=True, slots=True)
class Query:
    key: str
    title: str
    run: Callable[[DataFrame, Path], Any]
    narrow: str
    """The columns that the query needs, for the source that can be told."""
    columns: tuple[Column, ...]
    without_rows: Callable[[SparkOnNilometer, str, Path], Any] | None = None
    """What does the same without a DataFrame: the column EXPORT."""


def _count(frame: DataFrame, _: Path) -> int:
    return frame.count()


def _sum(frame: DataFrame, _: Path) -> int:
    from pyspark.sql import functions as f

    return frame.agg(f.sum(f.length("value")).alias("bytes")).collect()[0].bytes


def _parquet(frame: DataFrame, folder: Path) -> None:
    frame.write.mode("overwrite").parquet(str(folder / "rows"))


def _export(system: SparkOnNilometer, topic: str, folder: Path) -> None:
    """With the codec that Spark's writer has by default."""
    target = folder / "export"
    options = {"path": str(system.data_dir), "subscribe": topic}
    exported = export_topics(
        system.spark, options, target, columns=KAFKA_COLUMNS, compression=SPARK_COMPRESSION
    )
    expected = system.records if topic == TOPIC else WARM_UP_RECORDS
    if exported.rows != expected:
        raise RuntimeError(f"{exported.rows} records were exported, not {expected}")


def _of_brokers(connector: str) -> Callable[[SparkOnNilometer, str, Query], DataFrame]:
    def frame(system: SparkOnNilometer, topic: str, _: Query) -> DataFrame:
        options = {"kafka.bootstrap.servers": system.bootstrap, "subscribe": topic}
        return system.spark.read.format(connector).options(**options).load()

    return frame


def _of_folders(system: SparkOnNilometer, topic: str, _: Query) -> DataFrame:
    return _log_reader(system, topic, COLUMNS)


def _of_folders_by_columns(system: SparkOnNilometer, topic: str, query: Query) -> DataFrame:
    return _log_reader(system, topic, query.narrow)


def _log_reader(system: SparkOnNilometer, topic: str, schema: str) -> DataFrame:
    reader = system.spark.read.format("nilometer-log").schema(schema).option("subscribe", topic)
    return reader.load(str(system.data_dir))


SOURCES = {
    BASE: _of_brokers("kafka"),
    "nilometer": _of_brokers("nilometer"),
    "nilometer-log": _of_folders,
    "nilometer-log, only the columns needed": _of_folders_by_columns,
}


def _fill(system: SparkOnNilometer, topic: str, records: int) -> None:
    """``records`` in all, and known to be committed."""
    load.run("fill", system.bootstrap, topic, records, RECORD_BYTES, f"batch.size={BATCH_BYTES}")
    checkpoint = system.data_dir / "replication-offset-checkpoint"
    deadline = time.monotonic() + CHECKPOINT_WAIT_S
    while (known := _checkpointed(checkpoint, topic)) < records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the broker has checkpointed {known} of {records} records")
        time.sleep(0.1)


def _checkpointed(path: Path, topic: str) -> int:
    lines = [line.split() for line in path.read_text().splitlines()[2:]] if path.exists() else []
    return sum(int(offset) for name, _, offset in lines if name == topic)


def _read(system: System, query: Query) -> Numbers:
    """Records per second of each source."""
    assert isinstance(system, SparkOnNilometer)
    return _rates(system, query, TOPIC, system.records)


def _rates(system: SparkOnNilometer, query: Query, topic: str, records: int) -> Numbers:
    found: Numbers = {}
    expected = {"count": records, "sum": records * RECORD_BYTES}.get(query.key)
    for column in query.columns:
        began = time.monotonic()
        if column.key == EXPORT:
            assert query.without_rows is not None
            result = query.without_rows(system, topic, system.folder)
        else:
            result = query.run(SOURCES[column.key](system, topic, query), system.folder)
        found[column.key] = records / (time.monotonic() - began)
        remove(system.folder / "export")
        if expected is not None and result != expected:
            raise RuntimeError(f"{query.key} through {column.key} is {result}, not {expected}")
    return found


def _micro_batches(system: System) -> Numbers:
    assert isinstance(system, SparkOnNilometer)
    found: Numbers = {}
    for source in (BASE, "nilometer"):
        phases = _batch_floor(system, source, MICRO_BATCHES)
        found = {**found, source: phases[WHOLE_BATCH], **{f"{source} {key}": phases[key] for key in phases}}
    return found


def _batch_floor(system: SparkOnNilometer, connector: str, batches: int) -> dict[str, float]:
    """Median milliseconds of the phases of a micro-batch of one record, as Spark itself counts them."""
    options = {"kafka.bootstrap.servers": system.bootstrap, "subscribe": WARM_TOPIC}
    frame = system.spark.readStream.format(connector).options(**options, startingOffsets="latest").load()
    checkpoint = system.folder / f"checkpoint-{uuid.uuid4().hex[:6]}"
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    producer = Producer({"bootstrap.servers": system.bootstrap, "linger.ms": 0})
    durations: dict[str, list[float]] = defaultdict(list)
    try:
        query.processAllAvailable()
        for number in range(batches + MICRO_BATCHES_AHEAD):
            producer.produce(WARM_TOPIC, b"one record", partition=0)
            producer.flush(10)
            query.processAllAvailable()
            worked = [one for one in query.recentProgress if one["numInputRows"]]
            if number >= MICRO_BATCHES_AHEAD and worked:
                for phase, milliseconds in worked[-1]["durationMs"].items():
                    durations[phase].append(float(milliseconds))
    finally:
        query.stop()
    return {phase: statistics.median(each) for phase, each in durations.items()}


def _tiered(system: System) -> Numbers:
    """Records per second of the same queries over a folder, and over a topic that is in remote storage."""
    assert isinstance(system, SparkOnNilometer)
    create_topic(system, TIERED_TOPIC, PARTITIONS, config=TIERED)
    _fill(system, TIERED_TOPIC, system.records)
    deadline = time.monotonic() + TIERED_WAIT_S
    while len(list(system.data_dir.glob(f"{TIERED_TOPIC}-*/*.log"))) > PARTITIONS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{TIERED_TOPIC} is not in remote storage")
        time.sleep(0.5)
    found = dict[str, float | list[float]]()
    for query in QUERIES[:2]:
        for place in ("folder", "tier"):
            reader = system.spark.read.format("nilometer-log").schema(query.narrow)
            if place == "tier":
                reader = reader.option("tier", system.tier.as_uri())
            topic = TIERED_TOPIC if place == "tier" else TOPIC
            took, result = list[float](), None
            for _ in range(TIMES):
                began = time.monotonic()
                result = query.run(
                    reader.option("subscribe", topic).load(str(system.data_dir)), system.folder
                )
                took.append(time.monotonic() - began)
            expected = {"count": system.records, "sum": system.records * RECORD_BYTES}[query.key]
            if result != expected:
                raise RuntimeError(f"{query.key} of the {place} is {result}, not {expected}")
            found[f"{query.key}_{place}"] = system.records / statistics.median(took)
    return found


def _audit(system: System) -> Numbers:
    """GB/s over one replica, and over two that are compared as well."""
    assert isinstance(system, SparkOnNilometer)
    twin = system.folder / "twin"
    shutil.copytree(system.data_dir, twin, ignore=shutil.ignore_patterns(".lock"))
    found: Numbers = {}
    try:
        for key, places in (("one", [system.data_dir]), ("two", [system.data_dir, twin])):
            result = audit(system.spark, [str(one) for one in places])
            if result.wrong:
                raise RuntimeError(f"the audit found {result.wrong[0]}")
            found[key] = result.bytes / 1e9 / result.seconds
    finally:
        shutil.rmtree(twin)
    return found


def warm_up(system: System) -> None:
    """Compilers, workers and caches at work before anything is timed; not reported."""
    assert isinstance(system, SparkOnNilometer)
    for query in QUERIES:
        _rates(system, query, WARM_TOPIC, WARM_UP_RECORDS)


@contextmanager
def on_spark(scratch: Path, records: int) -> Generator[SparkOnNilometer]:
    """The system of these rows, warmed up, on an empty folder that is removed behind it."""
    scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=scratch)).resolve()
    system = SparkOnNilometer(folder, records)
    try:
        system.launch()
        system.wait_ready()
        warm_up(system)
        yield system
    finally:
        system.stop()
        remove(folder)


def _sources(*names: str, unit: str = "records/s", more_is_better: bool = True) -> tuple[Column, ...]:
    return tuple(Column(name, name, unit, more_is_better, digits=0) for name in names)


QUERIES = (
    Query("count", "into `count()`", _count, "offset bigint", _sources(*SOURCES)),
    Query("sum", "into a sum over the lengths of values", _sum, "value binary", _sources(*SOURCES)),
    Query(
        "parquet",
        "into Parquet, all columns",
        _parquet,
        COLUMNS,
        _sources(*list(SOURCES)[:3], EXPORT),
        without_rows=_export,
    ),
)

SPARK_ROWS: tuple[Row, ...] = (
    *(
        Row(
            f"spark-{query.key}",
            f"{RECORD_BYTES} B records {query.title}",
            query.columns,
            measure=partial(_read, query=query),
            in_spark=True,
            base=BASE,
        )
        for query in QUERIES
    ),
    Row(
        "spark-floor",
        "a micro-batch of one record",
        _sources(BASE, "nilometer", unit="ms", more_is_better=False),
        measure=_micro_batches,
        in_spark=True,
        base=BASE,
    ),
    Row(
        "spark-tier",
        f"{RECORD_BYTES} B records in remote storage and in a folder, by `nilometer-log`",
        tuple(
            Column(
                f"{query.key}_{place}", f"{query.title}, {place}", "records/s", more_is_better=True, digits=0
            )
            for query in QUERIES[:2]
            for place in ("folder", "tier")
        ),
        measure=_tiered,
        in_spark=True,
        once=True,
    ),
    Row(
        "spark-audit",
        "`nilometer audit`",
        (
            Column("one", "one replica", "GB/s", more_is_better=True, digits=2),
            Column("two", "two replicas, compared", "GB/s", more_is_better=True, digits=2),
        ),
        measure=_audit,
        in_spark=True,
    ),
)
