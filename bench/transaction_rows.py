"""The rows of transactions: librdkafka commits every 100 ms, on one broker and on three.

Throughput is taken from a producer that sends as fast as it can: its commit first waits for all that is in
its queue. So what a commit costs is taken from one that sends a modest, constant number of records.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

from . import load, plays
from .rows import CLIENT, CPU_PER_MILLION, RECORDS_PER_S, Column, Load, Numbers, Row
from .systems import System, cpu_seconds, delete_topic

PARTITIONS = 6
RECORD_BYTES = 100
RATE = 10_000
"""Records a second of the producer whose commits are timed."""
INPUT_RECORDS, QUICK_RECORDS = 4_000_000, 200_000
_groups = itertools.count()
_inputs: dict[str, str] = {}
"""By the address of a system: the topic that is transformed."""


def _produce(system: System, seconds: float, *, brokers: int, rate: int) -> Numbers:
    """As fast as it can if ``rate`` is 0."""
    topic = plays.fresh_topic(system, "transactions", PARTITIONS, brokers)
    cpu = cpu_seconds(system)
    done = load.run("produce", system.bootstrap, topic, seconds, RECORD_BYTES, rate, program="transactions")
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, topic)
    return _numbers(done, cpu)


def _fill(system: System, brokers: int, records: int) -> None:
    topic = plays.fresh_topic(system, "source", PARTITIONS, brokers)
    load.run("fill", system.bootstrap, topic, records, RECORD_BYTES, "batch.size=1000000")
    _inputs[system.bootstrap] = topic


def _empty(system: System) -> None:
    delete_topic(system, _inputs.pop(system.bootstrap))


def _transform(system: System, seconds: float, *, brokers: int) -> Numbers:
    """By a group that is new each time, and so begins at the start."""
    source = _inputs[system.bootstrap]
    target = plays.fresh_topic(system, "target", PARTITIONS, brokers)
    group = f"transformers-{next(_groups)}-{time.monotonic_ns()}"
    cpu = cpu_seconds(system)
    done = load.run("transform", system.bootstrap, source, target, group, seconds, program="transactions")
    cpu = cpu_seconds(system) - cpu
    delete_topic(system, target)
    return _numbers(done, cpu)


def _numbers(done: dict[str, Any], cpu_s: float) -> Numbers:
    return {
        "records_per_s": done["records"] / done["seconds"],
        "cpu_s_per_million": cpu_s / done["records"] * 1e6,
        "commit_p50_ms": done["p50"],
        "commit_p99_ms": done["p99"],
        "transactions": done["transactions"],
        **load.client_numbers(done),
    }


_COMMIT = (
    Column("commit_p50_ms", "p50 of a commit", "ms", more_is_better=False, digits=2),
    Column("commit_p99_ms", "p99 of a commit", "ms", more_is_better=False, digits=2),
)
_WHERE = {1: "one broker", 3: "three brokers"}


def _produce_row(brokers: int) -> Row:
    return Row(
        f"transactions-produce-{brokers}",
        f"{_WHERE[brokers]}: transactional produce of {RECORD_BYTES} B records, a commit every 100 ms",
        (RECORDS_PER_S, CPU_PER_MILLION, *CLIENT),
        Load(partial(_produce, brokers=brokers, rate=0), "records_per_s"),
        brokers=brokers,
    )


def _commit_row(brokers: int) -> Row:
    return Row(
        f"transactions-commit-{brokers}",
        f"{_WHERE[brokers]}: the same at {RATE:,} records/s",
        (*_COMMIT, *CLIENT),
        Load(partial(_produce, brokers=brokers, rate=RATE), "commit_p50_ms"),
        brokers=brokers,
    )


def _transform_row(brokers: int) -> Row:
    return Row(
        f"transactions-transform-{brokers}",
        f"{_WHERE[brokers]}: consume, transform and produce {RECORD_BYTES} B records exactly once, "
        "a commit every 100 ms",
        (RECORDS_PER_S, CPU_PER_MILLION, *_COMMIT, *CLIENT),
        _transform_load(brokers, INPUT_RECORDS),
        quick_load=_transform_load(brokers, QUICK_RECORDS),
        brokers=brokers,
    )


def _transform_load(brokers: int, records: int) -> Load:
    return Load(
        partial(_transform, brokers=brokers),
        "records_per_s",
        prepare=partial(_fill, brokers=brokers, records=records),
        clean=_empty,
    )


TRANSACTION_ROWS: tuple[Row, ...] = (
    _produce_row(1),
    _commit_row(1),
    _produce_row(3),
    _commit_row(3),
    _transform_row(3),
)
