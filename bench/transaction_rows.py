"""The rows of transactions: librdkafka commits every 100 ms, on one broker and on three.

Throughput is taken from a producer that sends as fast as it can: its commit first waits for all that is in
its queue. So what a commit costs is taken from one that sends a modest, constant number of records. Each
system is warmed up in the shape of the row until it is steady; these rounds are among the raw numbers.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any, cast

from . import load
from .clusters import Cluster, wait_in_sync
from .rows import Column, Numbers, Row
from .steady import until_steady
from .systems import System, cpu_seconds, create_topic

PARTITIONS = 6
RECORD_BYTES = 100
RATE = 10_000
"""Records a second of the producer whose commits are timed."""
ROUND_S = 5
WARM_UP_S = 45.0
MEASURED_S = 20
INPUT_RECORDS = 6_000_000
QUICK = {"round_s": 1, "warm_up_s": 0.0, "measured_s": 1}
_names = itertools.count()


def _topic(system: System, name: str, brokers: int) -> str:
    create_topic(system, name, PARTITIONS, brokers)
    if brokers > 1:
        wait_in_sync(cast(Cluster, system), name)
    return name


def _start(system: System) -> None:
    system.launch()
    system.wait_ready()


def _produce(
    system: System,
    brokers: int,
    round_s: int = ROUND_S,
    warm_up_s: float = WARM_UP_S,
    measured_s: int = MEASURED_S,
) -> Numbers:
    _start(system)
    topic = _topic(system, "transactions", brokers)

    def play(seconds: int, rate: int) -> dict[str, Any]:
        return load.run(
            "produce", system.bootstrap, topic, seconds, RECORD_BYTES, rate, program="transactions"
        )

    rounds = until_steady(lambda: _rate_of(play(round_s, 0)), warm_up_s)
    cpu = cpu_seconds(system)
    fast = play(measured_s, 0)
    cpu = cpu_seconds(system) - cpu
    commits = until_steady(lambda: play(round_s, RATE)["p50"], warm_up_s / 2)
    paced = play(measured_s, RATE)
    return {
        "warm_up_records_per_s": rounds,
        "warm_up_commit_p50_ms": commits,
        "records_per_s": _rate_of(fast),
        "cpu_s_per_million": cpu / fast["records"] * 1e6,
        "full_commit_p50_ms": fast["p50"],
        "commit_p50_ms": paced["p50"],
        "commit_p99_ms": paced["p99"],
    }


def _transform(
    system: System,
    brokers: int,
    round_s: int = ROUND_S,
    warm_up_s: float = WARM_UP_S,
    measured_s: int = MEASURED_S,
    input_records: int = INPUT_RECORDS,
) -> Numbers:
    _start(system)
    source = _topic(system, "source", brokers)
    target = _topic(system, "target", brokers)
    load.run("produce", system.bootstrap, source, input_records, RECORD_BYTES, 1_000_000, "all")

    def play(seconds: int) -> dict[str, Any]:
        group = f"transformers-{next(_names)}-{time.monotonic_ns()}"
        return load.run("transform", system.bootstrap, source, target, group, seconds, program="transactions")

    rounds = until_steady(lambda: _rate_of(play(round_s)), warm_up_s)
    cpu = cpu_seconds(system)
    done = play(measured_s)
    cpu = cpu_seconds(system) - cpu
    return {
        "warm_up_records_per_s": rounds,
        "records_per_s": _rate_of(done),
        "cpu_s_per_million": cpu / done["records"] * 1e6,
        "commit_p50_ms": done["p50"],
        "commit_p99_ms": done["p99"],
    }


def _rate_of(done: dict[str, Any]) -> float:
    return done["records"] / done["seconds"]


_RECORDS = Column("records_per_s", "records/s", "records/s", more_is_better=True, digits=0)
_CPU = Column("cpu_s_per_million", "broker CPU per million records", "s", more_is_better=False, digits=2)


_WHERE = {1: "one broker", 3: "three brokers"}


def _produce_row(brokers: int) -> Row:
    return Row(
        f"transactions-produce-{brokers}",
        f"{_WHERE[brokers]}: transactional produce of {RECORD_BYTES} B records, a commit every 100 ms",
        (
            _RECORDS,
            _CPU,
            Column(
                "commit_p50_ms", f"commit p50 at {RATE:,} records/s", "ms", more_is_better=False, digits=2
            ),
            Column(
                "commit_p99_ms", f"commit p99 at {RATE:,} records/s", "ms", more_is_better=False, digits=2
            ),
        ),
        partial(_produce, brokers=brokers),
        brokers=brokers,
        settings={},
        quick=partial(_produce, brokers=brokers, **QUICK),
    )


def _transform_row(brokers: int) -> Row:
    return Row(
        f"transactions-transform-{brokers}",
        f"{_WHERE[brokers]}: consume, transform and produce {RECORD_BYTES} B records exactly once, "
        "a commit every 100 ms",
        (
            _RECORDS,
            _CPU,
            Column("commit_p50_ms", "commit p50 under this load", "ms", more_is_better=False, digits=1),
            Column("commit_p99_ms", "commit p99 under this load", "ms", more_is_better=False, digits=1),
        ),
        partial(_transform, brokers=brokers),
        brokers=brokers,
        settings={},
        quick=partial(_transform, brokers=brokers, input_records=200_000, **QUICK),
    )


TRANSACTION_ROWS: tuple[Row, ...] = (
    _produce_row(1),
    _produce_row(3),
    _transform_row(3),
)
