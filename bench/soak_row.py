"""The row of half an hour under a constant load: whether memory and descriptors stay as they are.

A producer at a constant rate, and a consumer that reads what is written; segments are small and soon deleted,
so that logs roll and shrink all the time. Both systems are measured at the same time, which halves the row's
hour; two cores are busy then, so that latencies, which are among the raw numbers, are not compared. What has
grown is taken from the fifth minute to the last; all that was seen each half minute is among the raw numbers.
Measured on request only: `--row soak`.
"""

from __future__ import annotations

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from . import load, plays
from .rows import BROKER_CPU, Column, Numbers, Row
from .systems import System, cpu_seconds, descriptors, memory_mb

SECONDS = 1_800.0
SETTLED_SHARE = 1 / 6
"""Of the time: what memory a system takes before that does not count."""
LOOK_S = 30.0
RATE = 5_000
SIZE = 1_000
PARTITIONS = 6
LOG_SETTINGS = {"segment.bytes": str(32 << 20), "retention.bytes": str(64 << 20)}
SETTINGS = {"log.retention.check.interval.ms": "10000"}
"""Five minutes as shipped: a log shall shrink often."""


def _begin(system: System) -> Numbers:
    system.launch()
    system.wait_ready()
    return {}


def _soak(system: System, seconds: float = SECONDS, look_s: float = LOOK_S) -> Numbers:
    topic = plays.fresh_topic(system, "soaked", PARTITIONS, 1, **LOG_SETTINGS)
    ended = threading.Event()
    rss: list[float] = []
    files: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(_read_all, system.bootstrap, topic, ended)
        try:
            cpu, began = cpu_seconds(system), time.monotonic()
            writer = load.start("latency", system.bootstrap, topic, RATE, seconds, SIZE, plays.ACKS)
            while writer.poll() is None:
                time.sleep(look_s)
                rss.append(memory_mb(system)["rss_mb"])
                files.append(float(max(descriptors(system))))
            share = (cpu_seconds(system) - cpu) / (time.monotonic() - began)
            done = load.finish(writer)
        finally:
            ended.set()
        read = reader.result()
    settled = int(len(rss) * SETTLED_SHARE)
    return {
        "seen_rss_mb": rss,
        "seen_descriptors": files,
        "rss_mb": rss[-1],
        "rss_growth_mb": _growth(rss[settled:]),
        "descriptors_growth": _growth(files[settled:]),
        **{f"{key}_ms": done[key] for key in ("p50", "p99", "p999", "max")},
        "cpu_percent": 100 * share,
        "records_written": done["records"],
        "records_read": read,
    }


def _growth(seen: list[float]) -> float:
    """Median of the last quarter less that of the first: one peak does not count."""
    quarter = max(len(seen) // 4, 1)
    return statistics.median(seen[-quarter:]) - statistics.median(seen[:quarter])


def _read_all(bootstrap: str, topic: str, ended: threading.Event) -> int:
    """Until ``ended``; how many records there were."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "soak", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    read = 0
    try:
        while not ended.is_set():
            messages = consumer.consume(10_000, timeout=0.5)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
            read += len(messages)
    finally:
        consumer.close()
    return read


SOAK_ROWS: tuple[Row, ...] = (
    Row(
        "soak",
        f"half an hour, both systems at the same time, each at {RATE:,} records/s of {SIZE:,} B, written and "
        "read, logs rolled and deleted",
        (
            Column("rss_mb", "resident memory at the end", "MB", more_is_better=False, digits=0),
            Column("rss_growth_mb", "its growth since the fifth minute", "MB", False, is_compared=False),
            Column("descriptors_growth", "growth of the descriptors", "", False, 0, is_compared=False),
            BROKER_CPU,
        ),
        before=_begin,
        measure=_soak,
        quick=partial(_soak, seconds=4.0, look_s=0.5),
        settings=SETTINGS,
        once=True,
        on_request=True,
    ),
)
