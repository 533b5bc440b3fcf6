"""The rows of the table: what each measures, in which unit, and which way is better.

A row's function gets a running broker (or, for `launches`, one prepared but not started) and answers with
numbers by column. The rows of a round run in this order on one broker: what a row leaves behind, the next
finds. To add a row: write its function, add it to BROKER_ROWS. Rows for three brokers: `cluster_rows.py`;
of Spark: `spark.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from . import load
from .systems import System, cpu_seconds, create_topic, delete_topic, memory_mb

IDLE_SETTLE_S = 3.0
"""Between a start and the look at an idle broker's memory and CPU."""

Numbers = Mapping[str, float | list[float]]
"""By column: one number, or one of each repetition."""


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    unit: str
    more_is_better: bool
    digits: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    columns: tuple[Column, ...]
    measure: Callable[[System], Numbers]
    launches: bool = False
    """The row starts the broker itself."""
    is_under_load: bool = True
    """Compilers and caches must be warm before it."""
    brokers: int = 1
    once: bool = False
    """In the first round only: what it needs takes long to set up."""
    in_spark: bool = False
    settings: Mapping[str, str] | None = None
    """Of the row's own broker: it shares none with other rows, starts it itself, and warms it up in its own
    shape. None: it runs on the broker of the round."""
    quick: Callable[[System], Numbers] | None = None
    """The same in miniature, to see that it works."""
    base: str | None = None
    """The column that the others are held against, where that is not Apache Kafka's."""


def _start_to_first_acknowledgement(system: System) -> Numbers:
    """A broker that knows one topic, started while a producer already waits for it."""
    system.launch()
    system.wait_ready()
    topic = create_topic(system, "first")
    load.run("first", system.bootstrap, topic)
    system.stop()
    began = time.monotonic()
    system.launch()
    waiting = load.start("first", system.bootstrap, topic)
    acknowledged_at = load.finish(waiting)["acknowledged_at"]
    system.wait_ready()
    return {"seconds": acknowledged_at - began}


def _idle(system: System) -> Numbers:
    time.sleep(IDLE_SETTLE_S)
    cpu, began = cpu_seconds(system), time.monotonic()
    time.sleep(IDLE_SETTLE_S)
    share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
    return {**memory_mb(system), "cpu_percent": 100 * share}


def _warm_up(system: System) -> Numbers:
    """Compilers and caches of both at work before anything is timed; not reported."""
    topic = create_topic(system, "warm-up")
    load.run("produce", system.bootstrap, topic, 1_000_000, 100, 1_000_000, "all")
    load.run("produce", system.bootstrap, topic, 200_000, 100, 16_384, "all")
    load.run("consume", system.bootstrap, topic, 1_200_000, 1)
    load.run("latency", system.bootstrap, topic, 1000, 1, 100, "all")
    delete_topic(system, topic)
    return {}


def _produce(system: System, size: int, batch: int, count: int, topic: str) -> Numbers:
    create_topic(system, topic)
    cpu = cpu_seconds(system)
    done = load.run("produce", system.bootstrap, topic, count, size, batch, "all")
    cpu = cpu_seconds(system) - cpu
    return {
        "records_per_s": count / done["seconds"],
        "mb_per_s": count * size / done["seconds"] / 1e6,
        "cpu_s_per_million": cpu / count * 1e6,
    }


def _consume(system: System, count: int, size: int, topic: str) -> Numbers:
    cpu = cpu_seconds(system)
    done = load.run("consume", system.bootstrap, topic, count, 1)
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return {
        "records_per_s": count / done["seconds"],
        "mb_per_s": count * size / done["seconds"] / 1e6,
        "cpu_s_per_million": cpu / count * 1e6,
    }


def _latency(system: System, rate: int, seconds: int) -> Numbers:
    topic = create_topic(system, f"latency-{rate}")
    cpu = cpu_seconds(system)
    done = load.run("latency", system.bootstrap, topic, rate, seconds, 100, "all")
    cpu = cpu_seconds(system) - cpu
    return {
        "p50_ms": done["p50"],
        "p99_ms": done["p99"],
        "max_ms": done["max"],
        "cpu_percent": 100 * cpu / (seconds + 2),
    }


def _after_load(system: System) -> Numbers:
    return memory_mb(system)


THROUGHPUT = (
    Column("records_per_s", "records/s", "records/s", more_is_better=True, digits=0),
    Column("mb_per_s", "MB/s", "MB/s", more_is_better=True),
    Column("cpu_s_per_million", "broker CPU per million records", "s", more_is_better=False, digits=2),
)
LATENCY = (
    Column("p50_ms", "p50", "ms", more_is_better=False, digits=2),
    Column("p99_ms", "p99", "ms", more_is_better=False, digits=2),
    Column("cpu_percent", "broker CPU", "%", more_is_better=False),
)
RSS = Column("rss_mb", "resident memory", "MB", more_is_better=False, digits=0)
_ANONYMOUS = Column("anonymous_mb", "of it not mapped files", "MB", more_is_better=False, digits=0)
IDLE_CPU = Column("cpu_percent", "CPU", "%", more_is_better=False)
START = (Column("seconds", "time", "s", more_is_better=False, digits=2),)


def _produce_row(size: int, batch: int, count: int) -> Row:
    topic = f"produce-{size}-{batch}"
    return Row(
        topic,
        f"produce {size} B records, batches of {batch // 1000} kB, acks=all",
        THROUGHPUT,
        partial(_produce, size=size, batch=batch, count=count, topic=topic),
    )


def _consume_row(size: int, batch: int, count: int) -> Row:
    topic = f"produce-{size}-{batch}"
    return Row(
        f"consume-{size}-{batch}",
        f"consume {size} B records from the start, stored in batches of {batch // 1000} kB",
        THROUGHPUT,
        partial(_consume, size=size, count=count, topic=topic),
    )


_SHAPES = (
    (100, 1_000_000, 3_000_000),
    (100, 16_384, 2_000_000),
    (1000, 1_000_000, 500_000),
    (1000, 16_384, 500_000),
)

WARM_UP = Row("warm-up", "warm-up", (), _warm_up)

BROKER_ROWS: tuple[Row, ...] = (
    Row(
        "start",
        "process start to first acknowledged record",
        START,
        _start_to_first_acknowledgement,
        launches=True,
        is_under_load=False,
    ),
    Row("idle", "idle", (RSS, _ANONYMOUS, IDLE_CPU), _idle, is_under_load=False),
    *(row for shape in _SHAPES for row in (_produce_row(*shape), _consume_row(*shape))),
    Row(
        "latency-1000",
        "produce 1,000 records/s, linger 0, acks=all",
        LATENCY,
        partial(_latency, rate=1000, seconds=8),
    ),
    Row("after-load", "after all that", (RSS, _ANONYMOUS), _after_load),
)
