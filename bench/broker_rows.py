"""The rows of one broker: starting, idling, produce, consume, latency, memory.

Settings that are not as shipped: `auto.create.topics.enable` plays no part, since topics are created; topics
keep everything (`retention.ms=-1`) and deleted ones are removed after a second (`file.delete.delay.ms`).
"""

from __future__ import annotations

import time
from functools import partial

from . import load, plays
from .rows import ANONYMOUS, IDLE_CPU, LATENCY, RSS, START, THROUGHPUT, Load, Numbers, Row
from .systems import System, cpu_seconds, create_topic, delete_topic, memory_mb

QUIET_S = 300.0
"""An idle broker is looked at after so long."""
IDLE_S = 60.0
RATE = 1000
FILL_BYTES = 400_000_000
QUICK_FILL_BYTES = 20_000_000
FILL_MARGIN_BYTES = 150_000_000
"""More than a consumer reads ahead: it shall not wait at the end of the log."""
AFTER_LOAD_S = 5.0


def first_acknowledgement(system: System, brokers: int) -> Numbers:
    """Brokers that know one topic, started while a producer already waits for it."""
    system.launch()
    system.wait_ready()
    topic = plays.fresh_topic(system, "first", 1, brokers)
    load.run("first", system.bootstrap, topic)
    system.stop()
    began = time.monotonic()
    system.launch()
    waiting = load.start("first", system.bootstrap, topic)
    acknowledged_at = load.finish(waiting)["acknowledged_at"]
    system.wait_ready()
    return {"seconds": acknowledged_at - began}


def launch(system: System) -> Numbers:
    system.launch()
    system.wait_ready()
    return {}


def idle(system: System, quiet_s: float = QUIET_S, idle_s: float = IDLE_S) -> Numbers:
    """Of a system that has been left alone for ``quiet_s``."""
    time.sleep(quiet_s)
    cpu, began = cpu_seconds(system), time.monotonic()
    time.sleep(idle_s)
    share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
    return {**memory_mb(system), "cpu_percent": 100 * share}


def fill(system: System, topic: str, size: int, batch: int, count: int) -> None:
    create_topic(system, topic)
    records = count + min(FILL_MARGIN_BYTES // size, count)
    load.run("fill", system.bootstrap, topic, records, size, f"batch.size={batch}")


def _after_load(system: System, seconds: float = AFTER_LOAD_S) -> Numbers:
    """All shapes of produce, a consumer, and a topic that is left."""
    launch(system)
    for size, batch in SHAPES:
        plays.produce(system, seconds, size=size, settings=[f"batch.size={batch}"])
    topic = plays.fresh_topic(system, "consumed", 1, 1)
    load.run("fill", system.bootstrap, topic, 1_000_000, 100)
    plays.consume(system, seconds, topic=topic, size=100, count=500_000)
    plays.constant_rate(system, seconds, rate=RATE, size=100)
    return memory_mb(system)


SHAPES = ((100, 1_000_000), (100, 16_384), (1000, 1_000_000), (1000, 16_384))
"""Bytes of a record, bytes of a batch."""


def _produce_row(size: int, batch: int) -> Row:
    return Row(
        f"produce-{size}-{batch}",
        f"produce {size} B records, batches of {batch // 1000} kB, acks=all",
        THROUGHPUT,
        Load(partial(plays.produce, size=size, settings=[f"batch.size={batch}"]), "records_per_s"),
    )


def _consume_row(size: int, batch: int) -> Row:
    return Row(
        f"consume-{size}-{batch}",
        f"consume {size} B records from the start, stored in batches of {batch // 1000} kB",
        THROUGHPUT,
        _consume_load(size, batch, FILL_BYTES),
        quick_load=_consume_load(size, batch, QUICK_FILL_BYTES),
    )


def _consume_load(size: int, batch: int, total: int) -> Load:
    topic, count = f"consumed-{size}-{batch}", total // size
    return Load(
        partial(plays.consume, topic=topic, size=size, count=count),
        "records_per_s",
        prepare=partial(fill, topic=topic, size=size, batch=batch, count=count),
        clean=partial(delete_topic, name=topic),
    )


BROKER_ROWS: tuple[Row, ...] = (
    Row(
        "start",
        "process start to first acknowledged record",
        START,
        measure=partial(first_acknowledgement, brokers=1),
    ),
    Row(
        "idle",
        "idle, after five quiet minutes",
        (RSS, ANONYMOUS, IDLE_CPU),
        measure=idle,
        quick=partial(idle, quiet_s=1.0, idle_s=2.0),
        before=launch,
        once=True,
    ),
    *(_produce_row(*shape) for shape in SHAPES),
    *(_consume_row(*shape) for shape in SHAPES),
    Row(
        f"latency-{RATE}",
        f"produce {RATE:,} records/s, linger 0, acks=all",
        LATENCY,
        Load(partial(plays.constant_rate, rate=RATE, size=100), "p50_ms"),
    ),
    Row(
        "after-load",
        "after half a minute of produce and consume",
        (RSS, ANONYMOUS),
        measure=_after_load,
        quick=partial(_after_load, seconds=0.5),
        once=True,
    ),
)
