"""What a row of the table is: what it measures, in which unit, and which way is better.

There are two kinds. A *load* is played again and again on systems that run: `run.py` warms each system up
in this shape and measures the two in turns. Any other row measures a system in its own way, on a fresh one.
To add a row: write its functions, and add it to the list of its module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .systems import Settings, System

Numbers = Mapping[str, float | list[float]]
"""By column: one number, or one of each repetition."""


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    unit: str
    more_is_better: bool
    digits: int = 1
    is_compared: bool = True
    """No ratio is given otherwise."""
    limit: float | None = None
    """A number of at least this is at its limit, and the table says so."""


@dataclass(frozen=True, slots=True)
class Load:
    """One shape of load."""

    play: Callable[[System, float], Numbers]
    """For so many seconds, more or less."""
    steady_by: str
    """The column by which a system counts as steady."""
    prepare: Callable[[System], object] | None = None
    """Once, before the first play."""
    clean: Callable[[System], object] | None = None
    """Once, after the last."""


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    columns: tuple[Column, ...]
    load: Load | None = None
    measure: Callable[[System], Numbers] | None = None
    """On a system of its own, not launched yet, once in a round. In Spark: on that of the round."""
    quick: Callable[[System], Numbers] | None = None
    """``measure`` in miniature, to see that it works."""
    quick_load: Load | None = None
    """``load`` in miniature, where shorter rounds are not enough."""
    brokers: int = 1
    settings: Settings = field(default_factory=dict)
    """Of its brokers; rows with the same settings and number of brokers share theirs."""
    once: bool = False
    """In the first round only: it repeats what it measures, or takes long."""
    before: Callable[[System], Numbers] | None = None
    """If given, both systems are measured at the same time: this goes before, in turns."""
    quick_before: Callable[[System], Numbers] | None = None
    after: Callable[[System], Numbers] | None = None
    """And this behind it, in turns."""
    on_request: bool = False
    """Not part of the whole table."""
    in_spark: bool = False
    base: str | None = None
    """The column that the others are held against, where that is not Apache Kafka's."""
    systems: Callable[[], Mapping[str, Callable[[Path, Settings | None], System]]] | None = None
    """What is measured, by the names that `--system` has; None: the systems with so many brokers. What is not
    installed may be left out."""
    beside: str = "Apache Kafka"
    """The name of the system that Nilometer is held against."""
    draw: Callable[[dict[str, dict[str, list[float]]], Path], None] | None = None
    """Draws the row's numbers by system into a file of this name, and the end `.svg`."""


RECORDS_PER_S = Column("records_per_s", "records/s", "records/s", more_is_better=True, digits=0)
MB_PER_S = Column("mb_per_s", "MB/s", "MB/s", more_is_better=True)
CPU_PER_MILLION = Column(
    "cpu_s_per_million", "broker CPU per million records", "s", more_is_better=False, digits=2
)
CLIENT_LIMIT = 90.0
CLIENT = (
    Column("client_cpu_percent", "client CPU", "%", more_is_better=False, digits=0, is_compared=False),
    Column(
        "client_busiest_percent",
        "busiest thread of the client",
        "%",
        more_is_better=False,
        digits=0,
        is_compared=False,
        limit=CLIENT_LIMIT,
    ),
)
P50 = Column("p50_ms", "p50", "ms", more_is_better=False, digits=2)
P99 = Column("p99_ms", "p99", "ms", more_is_better=False, digits=2)
P999 = Column("p999_ms", "p99.9", "ms", more_is_better=False, digits=2)
BROKER_CPU = Column("cpu_percent", "broker CPU", "%", more_is_better=False)
THROUGHPUT = (RECORDS_PER_S, MB_PER_S, CPU_PER_MILLION, *CLIENT)
LATENCY = (P50, P99, P999, BROKER_CPU, *CLIENT)
RSS = Column("rss_mb", "resident memory", "MB", more_is_better=False, digits=0)
ANONYMOUS = Column("anonymous_mb", "of it not mapped files", "MB", more_is_better=False, digits=0)
IDLE_CPU = Column("cpu_percent", "CPU", "%", more_is_better=False, digits=2)
START = (Column("seconds", "time", "s", more_is_better=False, digits=2),)
