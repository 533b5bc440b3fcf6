"""The row of a scrape: how late records are acknowledged while the metrics of 10,000 partitions are read.

One scrape follows the other, each with the series of every partition: more than any Prometheus does. Apache
Kafka serves no metrics over HTTP by itself, and has only the numbers without scrapes.
"""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from functools import partial
from types import TracebackType

from . import plays
from .opening_rows import write_to
from .rows import Column, Numbers, Row
from .systems import Nilometer, System, create_topic

PARTITIONS = 10_000
TOPIC_PARTITIONS = 2_000
"""Of each topic: one request to create more would take longer than clients wait."""
RATE = 1000
SECONDS = 20.0
TIMEOUT_S = 60.0
SETTINGS = {"metrics.listener": "127.0.0.1:0", "metrics.per.partition.enable": "true"}


class Scrapes:
    """Reads the page again and again, in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scrapes")
        self._error: OSError | None = None
        self._seconds: list[float] = []
        self._bytes = 0

    def numbers(self) -> Numbers:
        """Raises RuntimeError if no scrape was completed, or one failed."""
        if self._error is not None or not self._seconds:
            raise RuntimeError(f"{self._url} could not be read") from self._error
        return {"scrape_s": statistics.median(self._seconds), "scrape_mb": self._bytes / 1e6}

    def __enter__(self) -> Scrapes:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as page:
                    self._bytes = len(page.read())
            except OSError as error:
                self._error = error
                return
            self._seconds.append(time.monotonic() - began)


def _measure(system: System, partitions: int, per_topic: int, seconds: float) -> Numbers:
    system.launch()
    system.wait_ready()
    topics = [create_topic(system, f"many-{number}", per_topic) for number in range(partitions // per_topic)]
    write_to(system, [(topic, per_topic - 1) for topic in topics])  # Kafka is still creating logs
    alone = plays.constant_rate(system, seconds, rate=RATE, size=100)
    found = {"alone_p50_ms": alone["p50_ms"], "alone_p99_ms": alone["p99_ms"]}
    if not isinstance(system, Nilometer):
        return found
    with Scrapes(system.metrics_url) as scrapes:
        scraped = plays.constant_rate(system, seconds, rate=RATE, size=100)
    own = {key: scraped[key] for key in ("p50_ms", "p99_ms", "p999_ms", "cpu_percent")}
    return {**found, **own, **scrapes.numbers()}


SCRAPE_ROW = Row(
    "scraped-latency",
    f"produce {RATE:,} records/s, linger 0, acks=all, while metrics of {PARTITIONS:,} partitions are scraped",
    (
        Column("alone_p50_ms", "p50 without scrapes", "ms", more_is_better=False, digits=2),
        Column("alone_p99_ms", "p99 without scrapes", "ms", more_is_better=False, digits=2),
        Column("p50_ms", "p50 during scrapes", "ms", more_is_better=False, digits=2),
        Column("p99_ms", "p99 during scrapes", "ms", more_is_better=False, digits=2),
        Column("p999_ms", "p99.9 during scrapes", "ms", more_is_better=False, digits=2),
        Column("cpu_percent", "broker CPU during scrapes", "%", more_is_better=False),
        Column("scrape_s", "time of a scrape", "s", more_is_better=False, digits=2),
        Column("scrape_mb", "size of its page", "MB", more_is_better=False),
    ),
    measure=partial(_measure, partitions=PARTITIONS, per_topic=TOPIC_PARTITIONS, seconds=SECONDS),
    quick=partial(_measure, partitions=40, per_topic=20, seconds=1.0),
    settings=SETTINGS,
    once=True,
)
